package bookstand.interop.broker;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** Producers, and consumers by the names of their topics and subscriptions. A message's payload is its name. */
final class Clients {

    private static final long PATIENCE_MILLIS = 60_000;
    private static final int QUIET_MILLIS = 500;
    private static final int TURN_MILLIS = 10;
    private static final int AGAIN_MILLIS = 100;

    /** A message, and who was given it. */
    private record Given(Consumer<byte[]> consumer, Message<byte[]> message) { }

    private final PulsarClient client;
    private final Map<String, Sending> sendings = new HashMap<>();
    private final Map<String, Working> workings = new HashMap<>();
    private final Map<String, List<Consumer<byte[]>>> consumers = new HashMap<>();
    private final Map<String, Map<String, Given>> given = new HashMap<>();

    Clients(PulsarClient client) {
        this.client = client;
    }

    void close() throws PulsarClientException {
        client.close();
    }

    // -- producers -------------------------------------------------------------------------------------------------

    /** {@code count} messages, {@code batch} of them in an entry, {@code keys} different keys, due after {@code delay}. */
    void send(Map<String, String> request) throws PulsarClientException {
        int batch = Integer.parseInt(request.getOrDefault("batch", "1"));
        ProducerBuilder<byte[]> builder = client.newProducer()
                .topic(request.get("topic"))
                // Whatever becomes of the server, it is sent until it is confirmed.
                .sendTimeout(0, TimeUnit.SECONDS)
                .blockIfQueueFull(true)
                .maxPendingMessages(Sending.WINDOW);
        if (batch > 1) {
            builder.enableBatching(true).batchingMaxMessages(batch).batchingMaxPublishDelay(1, TimeUnit.HOURS)
                    .batcherBuilder(BatcherBuilder.DEFAULT);
        } else {
            builder.enableBatching(false);
        }
        sendings.put(request.get("name"), new Sending(builder.create(), request));
    }

    /** Where those messages of a {@code name} are that are confirmed, once they are {@code count}. */
    void confirmed(Map<String, String> request, Map<String, String> answer) throws Exception {
        answer.put("sent", sendings.get(request.get("name")).confirmed(Integer.parseInt(request.get("count"))));
    }

    // -- consumers -------------------------------------------------------------------------------------------------

    void subscribe(Map<String, String> request) throws PulsarClientException {
        List<Consumer<byte[]>> many = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(request.getOrDefault("consumers", "1")); i++) {
            many.add(client.newConsumer()
                    .topic(request.get("topic"))
                    .subscriptionName(request.get("subscription"))
                    .subscriptionType(SubscriptionType.valueOf(request.get("type")))
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .consumerName("consumer-" + i)
                    .enableBatchIndexAcknowledgment(true)
                    .isAckReceiptEnabled(true)
                    .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                    .negativeAckRedeliveryDelay(AGAIN_MILLIS, TimeUnit.MILLISECONDS)
                    .subscribe());
        }
        consumers.put(key(request), many);
        given.put(key(request), new TreeMap<>());
    }

    /** What the subscription's consumers are given, until it is {@code count} and nothing more comes for a while. */
    void receive(Map<String, String> request, Map<String, String> answer) throws PulsarClientException {
        int count = Integer.parseInt(request.get("count"));
        List<String> names = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MILLIS;
        long last = System.currentTimeMillis();
        while (System.currentTimeMillis() < deadline
                && (names.size() < count || System.currentTimeMillis() < last + QUIET_MILLIS)) {
            for (Consumer<byte[]> consumer : consumers.get(key(request))) {
                Message<byte[]> message = consumer.receive(TURN_MILLIS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    String name = new String(message.getData());
                    names.add(name);
                    given.get(key(request)).put(name, new Given(consumer, message));
                    last = System.currentTimeMillis();
                }
            }
        }
        answer.put("received", String.join(",", names));
    }

    /** What is done when this returns was confirmed by the broker. */
    void acknowledge(Map<String, String> request) throws PulsarClientException {
        for (String name : request.get("names").split(",")) {
            Given one = given.get(key(request)).get(name);
            if (request.containsKey("cumulative")) {
                one.consumer().acknowledgeCumulative(one.message());
            } else {
                one.consumer().acknowledge(one.message());
            }
        }
    }

    void refuse(Map<String, String> request) {
        for (String name : request.get("names").split(",")) {
            Given one = given.get(key(request)).get(name);
            one.consumer().negativeAcknowledge(one.message());
        }
    }

    /** From now on a subscription's consumer gets messages, and acknowledges one of {@code each}. */
    void work(Map<String, String> request) {
        Consumer<byte[]> consumer = consumers.get(key(request)).get(0);
        workings.put(key(request), new Working(consumer, Integer.parseInt(request.get("each"))));
    }

    /** Where those messages are that it has acknowledged, once it was given those of {@code count} names. */
    void worked(Map<String, String> request, Map<String, String> answer) throws Exception {
        answer.put("acked", workings.remove(key(request)).acknowledged(Integer.parseInt(request.get("count"))));
    }

    void leave(Map<String, String> request) throws PulsarClientException {
        for (Consumer<byte[]> consumer : consumers.remove(key(request))) {
            consumer.close();
        }
    }

    private static String key(Map<String, String> request) {
        return request.get("topic") + " " + request.get("subscription");
    }

    /** Ledger, entry, and the place in its batch or -1. */
    static String place(MessageId id) {
        MessageIdAdv place = (MessageIdAdv) id;
        return place.getLedgerId() + ":" + place.getEntryId() + ":" + place.getBatchIndex();
    }
}
