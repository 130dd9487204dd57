package bookstand.interop.wire;

import bookstand.interop.Json;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import org.apache.bookkeeper.client.api.BKException;

/** A call of the client that is under way, and how what comes of it is written. */
final class Call<T> {

    private static final ExecutorService THREADS = Executors.newCachedThreadPool(runnable -> {
        Thread thread = new Thread(runnable, "call");
        thread.setDaemon(true);
        return thread;
    });

    private final CompletableFuture<T> future;
    private final Function<T, Object> form;

    private Call(CompletableFuture<T> future, Function<T, Object> form) {
        this.future = future;
        this.form = form;
    }

    static <T> Call<T> of(CompletableFuture<T> future, Function<T, Object> form) {
        return new Call<>(future, form);
    }

    /** A call that waits, in a thread of its own. */
    static <T> Call<T> in(Callable<T> waiting, Function<T, Object> form) {
        return new Call<>(CompletableFuture.supplyAsync(() -> {
            try {
                return waiting.call();
            } catch (Exception e) {
                throw new CompletionException(e);
            }
        }, THREADS), form);
    }

    static Call<Object> done(Object value) {
        return new Call<>(CompletableFuture.completedFuture(value), Function.identity());
    }

    boolean isDone() {
        return future.isDone();
    }

    /** False if that was not enough. */
    boolean await(long millis) throws InterruptedException {
        try {
            future.get(millis, TimeUnit.MILLISECONDS);
        } catch (ExecutionException e) {
            return true;
        } catch (TimeoutException e) {
            return false;
        }
        return true;
    }

    /** Until it is done, or something else is so. */
    void await(Callable<Boolean> enough, long millis) throws Exception {
        long until = System.currentTimeMillis() + millis;
        while (!isDone() && !enough.call() && System.currentTimeMillis() < until) {
            Thread.sleep(1);
        }
    }

    /** Of a call that is done. */
    Object result() {
        try {
            return Json.field("ok", form.apply(future.join()));
        } catch (Throwable e) {
            return failure(e);
        }
    }

    /** The code, or the name of what has none. */
    static Object failure(Throwable e) {
        Throwable cause = e;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        if (cause instanceof BKException) {
            return Json.field("error", ((BKException) cause).getCode());
        }
        Map<String, Object> failure = Json.field("error", null);
        failure.put("exception", cause.getClass().getName());
        failure.put("message", String.valueOf(cause.getMessage()));
        return failure;
    }
}
