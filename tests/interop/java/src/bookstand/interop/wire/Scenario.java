package bookstand.interop.wire;

import bookstand.interop.Cluster;
import bookstand.interop.Json;
import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;

/**
 * A recorded scenario: one operation after the other, each with what came of it.
 *
 * <p>Of what was recorded it is told the calls that complete with an operation ({@code expected}) and the numbers of
 * the handles afterwards ({@code awaited}): those say how long to wait, at most, not what to answer.
 */
final class Scenario {

    /** One kind of operation. */
    interface Operation {
        Call<?> start(JsonNode operation) throws Exception;
    }

    private static final long SETTLE_MILLIS = 3_000;
    /** Once it went another way than the recording. */
    private static final long PARTED_MILLIS = 200;
    private static final long LISTED_MILLIS = 200;
    private static final long QUIET_MILLIS = 40;
    /** Codes of failed adds after which a handle closes itself. */
    private static final Set<Integer> CLOSING = Set.of(-101, -6, -12, -21);
    private static final long PATIENCE_MILLIS = 40_000;
    private static final Map<String, Object> PENDING = Json.field("ok", "pending");
    private static final Clients CLIENTS = new Clients();

    final Cluster served;
    final Names names;
    final Map<String, LedgerHandle> handles = new TreeMap<>();
    /** Those of the handles that were opened, not created. */
    final Set<LedgerHandle> readers = new HashSet<>();
    final Bookies bookies;
    final Copies copies;
    private final JsonNode header;
    private final Map<String, BookKeeper> closed = new TreeMap<>();
    private final Map<String, Operation> operations = new LinkedHashMap<>();
    private final Map<String, Call<?>> adds = new TreeMap<>();
    private final Map<String, Call<?>> others = new TreeMap<>();
    private final Map<String, Object> finished = new TreeMap<>();
    private boolean parted;

    Scenario(Cluster served, int number, JsonNode header) {
        this.served = served;
        this.header = header;
        this.names = new Names(number);
        this.bookies = new Bookies(this);
        this.copies = new Copies(served);
        operations.put("await", this::await);
        operations.put("sleep", operation -> {
            Thread.sleep(operation.get("ms").asLong());
            return Call.done(null);
        });
        operations.put("client_close", operation -> {
            BookKeeper client = client(operation);
            closed.put(operation.get("client").asText(), client);
            CLIENTS.forget(client);
            return Call.in(() -> {
                client.close();
                return null;
            }, done -> null);
        });
        new Ledgers(this).addTo(operations);
        new Writing(this).addTo(operations);
        new Reading(this).addTo(operations);
        bookies.addTo(operations);
    }

    static void closeClients() throws Exception {
        CLIENTS.close();
    }

    /** Nothing of it is left for the next one. */
    void leave() throws Exception {
        served.takeOutAll();
        bookies.startAll();
        BookKeeper client = onlooker();
        for (long id : names.all()) {
            client.newDeleteLedgerOp().withLedgerId(id).execute().get(PATIENCE_MILLIS, TimeUnit.MILLISECONDS);
        }
    }

    /** What the metadata service says now, whatever the handles know. */
    LedgerMetadata metadata(long ledger) throws Exception {
        return onlooker().getLedgerManager().readLedgerMetadata(ledger).get(PATIENCE_MILLIS, TimeUnit.MILLISECONDS)
                .getValue();
    }

    /** Until all clients have heard that a bookie is there, or is not. */
    void awaitListed(BookieId bookie, boolean there) throws Exception {
        for (BookKeeper client : CLIENTS.all()) {
            long until = System.currentTimeMillis() + SETTLE_MILLIS;
            while (client.getMetadataClientDriver().getRegistrationClient().getBookieServiceInfo(bookie)
                    .isCompletedExceptionally() == there && System.currentTimeMillis() < until) {
                pause();
            }
        }
        // What chooses bookies for new ledgers hears of it by an event that comes with that one.
        Thread.sleep(LISTED_MILLIS);
    }

    /** A client that no recording has. */
    private BookKeeper onlooker() throws Exception {
        return CLIENTS.get(served, "", Json.of(Map.of()));
    }

    JsonNode settings(String client) {
        JsonNode settings = header.path("clients").path(client);
        return settings.isMissingNode() ? header.path("settings") : settings;
    }

    BookKeeper client(JsonNode operation) throws Exception {
        String name = operation.get("client").asText();
        if (closed.containsKey(name)) {
            return closed.get(name);
        }
        return CLIENTS.get(served, name, settings(name));
    }

    LedgerHandle handle(JsonNode operation) {
        LedgerHandle handle = handles.get(operation.get("handle").asText());
        if (handle == null) {
            throw new IllegalStateException("there is no handle " + operation.get("handle"));
        }
        return handle;
    }

    // -- one operation -----------------------------------------------------------------------------------------------

    JsonNode apply(JsonNode operation) throws Exception {
        Object result = result(operation);
        List<String> expected = new ArrayList<>();
        operation.path("expected").forEach(name -> expected.add(name.asText()));
        Map<String, Object> completed = new TreeMap<>();
        Map<String, Object> state = new TreeMap<>();
        if (operation.path("record").asBoolean()) {
            awaitClosed(operation, result);
            settle(operation, completed, state);
        } else {
            awaitRecorded(operation, expected, completed, state);
        }
        if (operation.get("op").asText().equals("await")) {
            result = finished.getOrDefault(operation.get("pending").asText(), PENDING);
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("result", result);
        answer.put("state", state);
        answer.put("completed", completed);
        return Json.of(answer);
    }

    /** Until all is as it was recorded, or for too long. */
    private void awaitRecorded(JsonNode operation, List<String> expected, Map<String, Object> completed,
            Map<String, Object> state) throws Exception {
        long until = System.currentTimeMillis() + (parted ? PARTED_MILLIS : SETTLE_MILLIS);
        boolean settled;
        do {
            collect(operation, expected, completed);
            look(state);
            settled = completed.keySet().containsAll(expected) && isAs(operation.path("awaited"), Json.of(state));
        } while (!settled && System.currentTimeMillis() < until && pause());
        parted |= !settled;
    }

    /** Until nothing has changed for a while. */
    private void settle(JsonNode operation, Map<String, Object> completed, Map<String, Object> state)
            throws Exception {
        JsonNode before = null;
        long still = System.currentTimeMillis();
        while (System.currentTimeMillis() - still < QUIET_MILLIS) {
            collect(operation, List.copyOf(others.keySet()), completed);
            look(state);
            JsonNode now = Json.of(List.of(state, completed.keySet()));
            if (!now.equals(before)) {
                still = System.currentTimeMillis();
            }
            before = now;
            pause();
        }
    }

    /** A handle of which an add fails closes itself in the background. */
    private void awaitClosed(JsonNode operation, Object result) throws Exception {
        int code = Json.of(result).path("error").asInt();
        if (!CLOSING.contains(code) || !operation.get("op").asText().startsWith("append")) {
            return;
        }
        long until = System.currentTimeMillis() + SETTLE_MILLIS;
        while (!handle(operation).isClosed() && System.currentTimeMillis() < until) {
            pause();
        }
    }

    private void look(Map<String, Object> state) {
        state.clear();
        handles.forEach((name, handle) -> state.put(name, numbers(handle)));
    }

    private Object result(JsonNode operation) {
        try {
            String kind = operation.get("op").asText();
            Call<?> call = operations.get(kind).start(operation);
            if (operation.has("pending") && !kind.equals("await")) {
                boolean add = kind.equals("append") || kind.equals("write");
                (add ? adds : others).put(operation.get("pending").asText(), call);
                return PENDING;
            }
            return call.await(PATIENCE_MILLIS) ? call.result() : PENDING;
        } catch (Throwable e) {
            return Call.failure(e);
        }
    }

    private Call<?> await(JsonNode operation) throws Exception {
        String name = operation.get("pending").asText();
        if (!finished.containsKey(name)) {
            (adds.containsKey(name) ? adds : others).get(name).await(operation.get("timeout_ms").asLong());
        }
        return Call.done("pending");
    }

    /** Adds whenever they are done; of the others, those that the recording has here. */
    private void collect(JsonNode operation, List<String> expected, Map<String, Object> completed) {
        boolean awaits = operation.get("op").asText().equals("await");
        for (Map<String, Call<?>> calls : List.of(adds, others)) {
            Iterator<Map.Entry<String, Call<?>>> each = calls.entrySet().iterator();
            while (each.hasNext()) {
                Map.Entry<String, Call<?>> one = each.next();
                String name = one.getKey();
                boolean asked = calls == adds || expected.contains(name)
                        || awaits && operation.get("pending").asText().equals(name);
                if (asked && one.getValue().isDone()) {
                    completed.put(name, one.getValue().result());
                    finished.put(name, completed.get(name));
                    each.remove();
                }
            }
        }
    }

    private static List<Object> numbers(LedgerHandle handle) {
        return List.of(
                handle.getLastAddConfirmed(), handle.getLastAddPushed(), handle.getLength(), handle.isClosed());
    }

    /** Whether the numbers are those, where there are some. */
    private static boolean isAs(JsonNode awaited, JsonNode state) {
        Iterator<Map.Entry<String, JsonNode>> each = awaited.fields();
        while (each.hasNext()) {
            Map.Entry<String, JsonNode> one = each.next();
            JsonNode numbers = state.path(one.getKey());
            for (int i = 0; i < one.getValue().size(); i++) {
                JsonNode number = one.getValue().get(i);
                if (!number.isNull() && !number.asText().equals(numbers.path(i).asText())) {
                    return false;
                }
            }
        }
        return true;
    }

    private static boolean pause() throws InterruptedException {
        Thread.sleep(2);
        return true;
    }
}
