package bookstand.interop.broker;

import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;

/** Somebody who goes on consuming, whatever becomes of the server, and acknowledges some of what he is given. */
final class Working {

    private static final int TURN_MILLIS = 100;

    private final Set<String> names = Collections.synchronizedSet(new HashSet<>());
    private final Set<String> acknowledged = Collections.synchronizedSet(new TreeSet<>());
    private final Thread thread;
    private volatile boolean ending;
    private volatile Throwable failure;

    Working(Consumer<byte[]> consumer, int each) {
        thread = new Thread(() -> {
            try {
                while (!ending) {
                    Message<byte[]> message = consumer.receive(TURN_MILLIS, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        take(consumer, message, each);
                    }
                }
            } catch (Throwable e) {
                failure = e;
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void take(Consumer<byte[]> consumer, Message<byte[]> message, int each) throws Exception {
        String name = new String(message.getData());
        if (Integer.parseInt(name.substring(name.lastIndexOf('-') + 1)) % each == 0) {
            consumer.acknowledge(message);
            acknowledged.add(name + "@" + Clients.place(message.getMessageId()));
        }
        names.add(name);
    }

    String acknowledged(int count) throws Exception {
        Patience.await(() -> {
            if (failure != null) {
                throw new IllegalStateException("consuming has failed", failure);
            }
            return names.size() >= count;
        }, 1, () -> names.size() + " of " + count + " received");
        ending = true;
        thread.join();
        synchronized (acknowledged) {
            return String.join(",", acknowledged);
        }
    }
}
