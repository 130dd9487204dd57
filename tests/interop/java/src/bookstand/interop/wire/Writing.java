package bookstand.interop.wire;

import bookstand.interop.Json;
import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.Unpooled;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;

/** Operations that add entries, make them durable, and end a ledger. */
final class Writing {

    private static final long TOGETHER_MILLIS = 2_000;
    /** What is larger no bookie takes. */
    private static final int FRAME_BYTES = 5 << 20;

    private final Scenario scenario;

    Writing(Scenario scenario) {
        this.scenario = scenario;
    }

    void addTo(Map<String, Scenario.Operation> operations) {
        operations.put("append", this::append);
        operations.put("append_many", this::appendMany);
        operations.put("write", this::write);
        operations.put("force", op -> Call.of(scenario.handle(op).force(), done -> null));
        operations.put("close", op -> Call.of(scenario.handle(op).closeAsync(), done -> null));
    }

    private Call<?> append(JsonNode op) throws Exception {
        LedgerHandle handle = scenario.handle(op);
        byte[] data = Values.payload(op.get("data"));
        if (op.has("offset")) {
            return Call.in(
                    () -> handle.addEntry(data, op.get("offset").asInt(), op.get("count").asInt()), entry -> entry);
        }
        if (op.has("api") || scenario.readers.contains(handle)) {
            return Call.in(() -> handle.addEntry(data), entry -> entry);
        }
        long next = handle.getLastAddPushed() + 1;
        scenario.bookies.holdIfHeld(handle, next);
        Call<?> add = Call.of(handle.appendAsync(Unpooled.wrappedBuffer(data)), entry -> entry);
        return stored(op, handle, next, data, add);
    }

    /** All of them have left the client before the first is answered. */
    private Call<?> appendMany(JsonNode op) throws Exception {
        LedgerHandle handle = scenario.handle(op);
        List<CompletableFuture<Object>> adds = new ArrayList<>();
        String rule = "stall@append(" + handle.getId() + ")*inf";
        scenario.served.putIn(rule);
        try {
            for (JsonNode data : op.get("data")) {
                CompletableFuture<Object> add = new CompletableFuture<>();
                adds.add(add);
                handle.asyncAddEntry(Values.payload(data), (code, to, entry, context) -> add.complete(
                        code == BKException.Code.OK ? Json.field("ok", entry) : Json.field("error", code)), null);
            }
            int sent = adds.size() * handle.getLedgerMetadata().getWriteQuorumSize();
            CompletableFuture<?> all = CompletableFuture.allOf(adds.toArray(CompletableFuture[]::new));
            Call<?> call = Call.of(all, done -> adds.stream().map(CompletableFuture::join).toList());
            call.await(() -> scenario.served.happened(rule) >= sent, TOGETHER_MILLIS);
            return call;
        } finally {
            scenario.served.takeOut(rule);
        }
    }

    /** An add that is not waited for is given time to be stored by all bookies that it was sent to. */
    private Call<?> stored(JsonNode op, LedgerHandle handle, long entry, byte[] data, Call<?> add) throws Exception {
        if (op.has("pending") && data.length < FRAME_BYTES) {
            int copies = handle.getLedgerMetadata().getWriteQuorumSize();
            add.await(() -> scenario.copies.count(handle.getId(), entry) >= copies, TOGETHER_MILLIS);
        }
        return add;
    }

    private Call<?> write(JsonNode op) throws Exception {
        LedgerHandle handle = scenario.handle(op);
        byte[] data = Values.payload(op.get("data"));
        long entry = op.get("entry").asLong();
        if (op.has("offset")) {
            return Call.in(() -> handle.addEntry(entry, data, op.get("offset").asInt(), op.get("count").asInt()),
                    written -> written);
        }
        if (handle instanceof LedgerHandleAdv) {
            scenario.bookies.holdIfHeld(handle, entry);
            return stored(op, handle, entry, data, Call.of(
                    ((LedgerHandleAdv) handle).writeAsync(entry, Unpooled.wrappedBuffer(data)), written -> written));
        }
        return Call.in(() -> handle.addEntry(entry, data), written -> written);
    }
}
