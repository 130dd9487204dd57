package bookstand.interop.broker;

import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** Messages on their way, and where those are that the broker has confirmed. */
final class Sending {

    static final int WINDOW = 200;

    private final Map<String, String> confirmed = new ConcurrentSkipListMap<>();
    private final int count;
    private final Thread thread;
    private volatile Throwable failure;

    Sending(Producer<byte[]> producer, Map<String, String> request) {
        count = Integer.parseInt(request.get("count"));
        thread = new Thread(() -> {
            try (producer) {
                send(producer, request);
            } catch (Throwable e) {
                failure = e;
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void send(Producer<byte[]> producer, Map<String, String> request) throws Exception {
        int keys = Integer.parseInt(request.getOrDefault("keys", "0"));
        long delay = Long.parseLong(request.getOrDefault("delay", "0"));
        long step = Long.parseLong(request.getOrDefault("step", "0"));
        for (int number = 0; number < count; number++) {
            String name = request.get("name") + "-" + number;
            TypedMessageBuilder<byte[]> message = producer.newMessage().value(name.getBytes());
            if (keys > 0) {
                message.key("key-" + number % keys);
            }
            if (delay > 0) {
                message.deliverAfter(delay + number * step, TimeUnit.MILLISECONDS);
            }
            message.sendAsync().whenComplete((id, e) -> {
                if (e == null) {
                    confirmed.put(name, Clients.place(id));
                } else {
                    failure = e;
                }
            });
        }
        producer.flush();
        // The thread stays until all is confirmed: closing the producer fails what is not.
        await(count);
    }

    /** By name, in order of names, once they are so many; the producer is closed when they are all. */
    String confirmed(int enough) throws Exception {
        await(enough);
        if (enough == count) {
            thread.join();
        }
        return confirmed.entrySet().stream().map(one -> one.getKey() + "@" + one.getValue())
                .collect(Collectors.joining(","));
    }

    private void await(int enough) throws Exception {
        Patience.await(() -> {
            if (failure != null) {
                throw new IllegalStateException("sending has failed", failure);
            }
            return confirmed.size() >= enough;
        }, 1, () -> confirmed.size() + " of " + enough + " confirmed");
    }
}
