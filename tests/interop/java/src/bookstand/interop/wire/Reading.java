package bookstand.interop.wire;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;

/** Operations that read entries, and that tell how far a ledger is. */
final class Reading {

    private final Scenario scenario;

    Reading(Scenario scenario) {
        this.scenario = scenario;
    }

    void addTo(Map<String, Scenario.Operation> operations) {
        operations.put("read", op -> read(op, op.has("api")));
        operations.put("read_unconfirmed", op -> readUnconfirmed(op, op.has("api")));
        operations.put("batch_read", op -> batchRead(op, op.has("api")));
        operations.put("batch_read_unconfirmed", op -> batchReadUnconfirmed(op, op.has("api")));
        operations.put("read_last_entry", op -> op.has("api") ? readLastEntryAsync(op) : readLastEntry(op));
        operations.put("read_lac", op -> Call.of(scenario.handle(op).readLastAddConfirmedAsync(), lac -> lac));
        operations.put("try_read_lac", op -> Call.of(scenario.handle(op).tryReadLastAddConfirmedAsync(), lac -> lac));
        operations.put("read_explicit_lac", op -> {
            LedgerHandle handle = scenario.handle(op);
            return Call.in(handle::readExplicitLastConfirmed, lac -> lac);
        });
        operations.put("wait_entry", op -> Call.of(
                scenario.handle(op).readLastAddConfirmedAndEntryAsync(
                        op.get("entry").asLong(), op.get("timeout_ms").asLong(), false),
                Reading::waited));
        operations.put("handle_lac", op -> Call.done(numbers(scenario.handle(op))));
        operations.put("stored", this::stored);
    }

    private Call<?> read(JsonNode op, boolean callback) {
        LedgerHandle handle = scenario.handle(op);
        long first = op.get("first").asLong();
        long last = op.get("last").asLong();
        return callback
                ? Call.in(() -> handle.readEntries(first, last), Values::entries)
                : Call.of(handle.readAsync(first, last), Values::entries);
    }

    private Call<?> readUnconfirmed(JsonNode op, boolean callback) {
        LedgerHandle handle = scenario.handle(op);
        long first = op.get("first").asLong();
        long last = op.get("last").asLong();
        return callback
                ? Call.in(() -> handle.readUnconfirmedEntries(first, last), Values::entries)
                : Call.of(handle.readUnconfirmedAsync(first, last), Values::entries);
    }

    private Call<?> batchRead(JsonNode op, boolean callback) {
        LedgerHandle handle = scenario.handle(op);
        long start = op.get("start").asLong();
        int count = op.get("max_count").asInt();
        long size = op.get("max_size").asLong();
        return callback
                ? Call.in(() -> handle.batchReadEntries(start, count, size), Values::entries)
                : Call.of(handle.batchReadAsync(start, count, size), Values::entries);
    }

    private Call<?> batchReadUnconfirmed(JsonNode op, boolean callback) {
        LedgerHandle handle = scenario.handle(op);
        long start = op.get("start").asLong();
        int count = op.get("max_count").asInt();
        long size = op.get("max_size").asLong();
        return callback
                ? Call.in(() -> handle.batchReadUnconfirmedEntries(start, count, size), Values::entries)
                : Call.of(handle.batchReadUnconfirmedAsync(start, count, size), Values::entries);
    }

    private Call<?> readLastEntry(JsonNode op) {
        LedgerHandle handle = scenario.handle(op);
        return Call.in(handle::readLastEntry, Values::entry);
    }

    private Call<?> readLastEntryAsync(JsonNode op) {
        CompletableFuture<Enumeration<LedgerEntry>> read = new CompletableFuture<>();
        scenario.handle(op).asyncReadLastEntry((code, handle, entries, context) -> {
            if (code == BKException.Code.OK) {
                read.complete(entries);
            } else {
                read.completeExceptionally(BKException.create(code));
            }
        }, null);
        return Call.of(read, Values::entries);
    }

    private static Map<String, Object> waited(LastConfirmedAndEntry found) {
        Map<String, Object> waited = new LinkedHashMap<>();
        waited.put("lac", found.getLastAddConfirmed());
        waited.put("entry", found.hasEntry() ? Values.entry(found.getEntry()) : null);
        found.close();
        return waited;
    }

    private Map<String, Object> numbers(LedgerHandle handle) {
        Map<String, Object> numbers = new LinkedHashMap<>();
        numbers.put("last_add_confirmed", handle.getLastAddConfirmed());
        numbers.put("last_add_pushed", handle.getLastAddPushed());
        numbers.put("length", handle.getLength());
        numbers.put("closed", handle.isClosed());
        numbers.put("fragments", handle.getNumFragments());
        numbers.put("bookies", handle.getNumBookies());
        numbers.put("id", scenario.names.of(handle.getId()));
        numbers.put("custom_metadata", Values.written(handle.getCustomMetadata()));
        return numbers;
    }

    private Call<?> stored(JsonNode op) throws Exception {
        long ledger = scenario.names.id(op.get("ledger"));
        List<Object> entries = new ArrayList<>();
        for (long entry = op.get("first").asLong(); entry <= op.get("last").asLong(); entry++) {
            entries.add(scenario.copies.of(ledger, entry));
        }
        return Call.done(entries);
    }
}
