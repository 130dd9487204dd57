package bookstand.interop.delayed;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.broker.delayed.bucket.BucketNotExistException;
import org.apache.pulsar.broker.delayed.bucket.BucketSnapshotPersistenceException;
import org.apache.pulsar.broker.delayed.bucket.BucketSnapshotStorage;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;

/** Snapshots and properties in memory. Calls can fail, and can stay pending until they are released. */
final class SnapshotCalls implements BucketSnapshotStorage {

    /** A call that is pending. */
    record Held(String kind, Runnable completion) { }

    final Map<String, String> properties = new LinkedHashMap<>();
    final List<Map<String, Object>> log = new ArrayList<>();
    final List<Held> held = new ArrayList<>();
    private final Map<Long, List<byte[]>> snapshots = new TreeMap<>();
    private final Map<String, Deque<String>> failures = new HashMap<>();
    private final Set<String> holding = new HashSet<>();
    private long nextId;

    SnapshotCalls(long firstId) {
        nextId = firstId;
    }

    // -- operations ---------------------------------------------------------------------------------------------------

    void apply(JsonNode op, Map<String, Object> outcome) {
        switch (op.get("op").asText()) {
            case "fail" -> {
                Deque<String> errors = failures.computeIfAbsent(op.get("call").asText(), kind -> new ArrayDeque<>());
                for (int i = 0; i < op.get("times").asInt(); i++) {
                    errors.addLast(op.get("error").asText());
                }
            }
            case "heal" -> failures.clear();
            case "hold" -> op.get("calls").forEach(kind -> holding.add(kind.asText()));
            case "unhold" -> outcome.put("result", releaseAll());
            case "release" -> outcome.put("result", release(op));
            case "set_property" -> properties.put(op.get("key").asText(), op.get("value").asText());
            case "remove_property" -> properties.remove(op.get("key").asText());
            case "move_property" -> {
                String key = op.get("key").asText();
                properties.put(key, properties.remove(key));
            }
            case "put_snapshot" -> {
                List<byte[]> entries = new ArrayList<>();
                op.get("entries").forEach(entry -> entries.add(Base64.getDecoder().decode(entry.asText())));
                snapshots.put(op.get("id").asLong(), entries);
            }
            case "drop_snapshot" -> snapshots.remove(op.get("id").asLong());
            case "truncate_snapshot" -> {
                List<byte[]> entries = snapshots.get(op.get("id").asLong());
                entries.subList(op.get("keep").asInt(), entries.size()).clear();
            }
            default -> throw new IllegalArgumentException("operation " + op.get("op"));
        }
    }

    Map<String, List<Integer>> lengths() {
        Map<String, List<Integer>> lengths = new LinkedHashMap<>();
        snapshots.forEach((id, entries) ->
                lengths.put(String.valueOf(id), entries.stream().map(entry -> entry.length).toList()));
        return lengths;
    }

    int releaseAll() {
        holding.clear();
        int released = 0;
        while (!held.isEmpty()) {
            held.remove(0).completion().run();
            released++;
        }
        return released;
    }

    private int release(JsonNode op) {
        int released = 0;
        while (!op.has("n") || released < op.get("n").asInt()) {
            Held next = held.stream().filter(one -> !op.has("call") || one.kind().equals(op.get("call").asText()))
                    .findFirst().orElse(null);
            if (next == null) {
                break;
            }
            held.remove(next);
            next.completion().run();
            released++;
        }
        return released;
    }

    // -- calls --------------------------------------------------------------------------------------------------------

    private <T> CompletableFuture<T> call(String kind, Map<String, Object> arguments, Callable<T> work) {
        Map<String, Object> call = new LinkedHashMap<>();
        call.put("call", kind);
        call.putAll(arguments);
        log.add(call);
        Deque<String> errors = failures.getOrDefault(kind, new ArrayDeque<>());
        String error = errors.pollFirst();
        if (error != null && error.startsWith("throw:")) {
            call.put("result", "throw");
            throw new RuntimeException(error);
        }
        CompletableFuture<T> source = new CompletableFuture<>();
        Runnable completion = () -> {
            try {
                if (error != null) {
                    throw failure(error);
                }
                T value = work.call();
                if (kind.equals("create")) {
                    call.put("id", value);
                }
                call.put("result", "ok");
                source.complete(value);
            } catch (Throwable e) {
                call.put("result", "fail:" + e.getClass().getSimpleName());
                source.completeExceptionally(e);
            }
        };
        CompletableFuture<T> dependent = source.thenApply(value -> value);
        if (holding.contains(kind)) {
            call.put("held", true);
            held.add(new Held(kind, completion));
        } else {
            completion.run();
        }
        return dependent;
    }

    private static Throwable failure(String error) {
        return switch (error) {
            case "persistence" -> new BucketSnapshotPersistenceException("persistence");
            case "not_exist" -> new BucketNotExistException("not_exist");
            case "bad_version" -> new ManagedLedgerException.BadVersionException("bad_version");
            case "ml" -> new ManagedLedgerException("ml");
            default -> new RuntimeException(error);
        };
    }

    private List<byte[]> entries(long id) throws Exception {
        List<byte[]> entries = snapshots.get(id);
        if (entries == null) {
            throw new BucketSnapshotPersistenceException("no snapshot " + id);
        }
        return entries;
    }

    CompletableFuture<Void> put(String key, String value) {
        return call("put_property", Map.of("key", key, "value", value), () -> {
            properties.put(key, value);
            return null;
        });
    }

    CompletableFuture<Void> remove(String key) {
        return call("remove_property", Map.of("key", key), () -> {
            properties.remove(key);
            return null;
        });
    }

    @Override
    public CompletableFuture<Long> createBucketSnapshot(SnapshotMetadata metadata, List<SnapshotSegment> segments,
            String key, String topic, String cursor) {
        List<byte[]> entries = new ArrayList<>();
        entries.add(metadata.toByteArray());
        segments.forEach(segment -> entries.add(segment.toByteArray()));
        return call("create", Map.of("key", key), () -> {
            snapshots.put(nextId, entries);
            return nextId++;
        });
    }

    @Override
    public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long id) {
        return call("metadata", Map.of("id", id), () -> {
            SnapshotMetadata metadata = new SnapshotMetadata();
            metadata.parseFrom(entries(id).get(0));
            return metadata;
        });
    }

    @Override
    public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(long id, long first, long last) {
        return call("segments", Map.of("id", id, "first", first, "last", last), () -> {
            List<SnapshotSegment> segments = new ArrayList<>();
            for (long number = first; number <= last; number++) {
                if (number >= entries(id).size()) {
                    throw new BucketSnapshotPersistenceException("no entry " + number);
                }
                SnapshotSegment segment = new SnapshotSegment();
                segment.parseFrom(entries(id).get((int) number));
                segments.add(segment);
            }
            return segments;
        });
    }

    @Override
    public CompletableFuture<Long> getBucketSnapshotLength(long id) {
        return call("length", Map.of("id", id), () -> entries(id).stream().mapToLong(entry -> entry.length).sum());
    }

    @Override
    public CompletableFuture<Void> deleteBucketSnapshot(long id) {
        return call("delete", Map.of("id", id), () -> {
            entries(id);
            snapshots.remove(id);
            return null;
        });
    }

    @Override
    public void start() {
    }

    @Override
    public void close() {
    }
}
