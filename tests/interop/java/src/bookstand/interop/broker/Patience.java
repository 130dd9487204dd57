package bookstand.interop.broker;

import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/** Waits for what has to happen, and not for ever. */
final class Patience {

    interface Condition {
        boolean holds() throws Exception;
    }

    private static final long MILLIS = 120_000;

    private Patience() {
    }

    /** {@code so} says how far it is, for when it does not happen. */
    static void await(Condition condition, int pauseMillis, Supplier<String> so) throws Exception {
        long deadline = System.currentTimeMillis() + MILLIS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > deadline) {
                throw new TimeoutException(so.get());
            }
            Thread.sleep(pauseMillis);
        }
    }
}
