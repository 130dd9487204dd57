package bookstand.interop.topic;

import bookstand.interop.Json;
import bookstand.interop.Lines;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.common.collect.Range;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.mledger.AsyncCallbacks;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedCursor.IndividualDeletedEntries;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.AckSetStateUtil;
import org.apache.bookkeeper.mledger.impl.ManagedCursorImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;
import org.apache.bookkeeper.mledger.proto.BatchedEntryDeletionIndexInfo;
import org.apache.bookkeeper.mledger.proto.LongListMap;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.MessageRange;
import org.apache.bookkeeper.mledger.proto.PositionInfo;
import org.apache.pulsar.common.api.proto.CommandSubscribe.InitialPosition;

/** The original's topic and its cursors, operation by operation, each with its outcome and the state after it. */
public final class TopicRecorder {

    private static final long PATIENCE_SECONDS = 8;
    /** Of what goes on in the background; not everything comes to an end. */
    private static final long SETTLE_MILLIS = 1_500;
    private static final long POLL_MILLIS = 8;
    private static final long CRASH_MILLIS = 200;
    private static final int AT_ONCE = 10;
    private static final int SCHEDULERS = 4;
    private static final int NEVER_SECONDS = 1_000_000;
    private static final long LAFTER = 1_000_000;
    private static OneBookie originals;
    private static int topics;

    private final String name = "public/default/persistent/recorded-" + ++topics;
    private final ObjectNode config;
    private final Map<Long, Integer> numbers = new HashMap<>();
    private final List<Long> ids = new ArrayList<>();
    private final Map<String, ManagedCursorImpl> cursors = new TreeMap<>();
    private final Map<String, Object> told = new HashMap<>();
    private long now = 1_700_000_000_000L;
    private int added;
    private ManagedLedgerFactoryImpl factory;
    private ManagedLedgerImpl topic;

    private TopicRecorder(JsonNode header) {
        this.config = header.get("config").deepCopy();
    }

    /** Scenarios are a list of objects {@code {"header": ..., "lines": [...]}}; several are recorded at a time. */
    public static void record(Map<String, String> request, Map<String, String> answer) throws Exception {
        if (originals == null) {
            originals = new OneBookie();
        }
        JsonNode scenarios = Json.read(new String(Lines.bytes(request.get("scenarios")), StandardCharsets.UTF_8));
        ExecutorService threads = Executors.newFixedThreadPool(AT_ONCE);
        List<Future<List<JsonNode>>> recording = new ArrayList<>();
        for (JsonNode scenario : scenarios) {
            TopicRecorder recorder = new TopicRecorder(scenario.get("header"));
            recording.add(threads.submit(() -> recorder.record(scenario.get("lines"))));
        }
        List<List<JsonNode>> recorded = new ArrayList<>();
        for (Future<List<JsonNode>> one : recording) {
            recorded.add(one.get());
        }
        threads.shutdown();
        answer.put("lines", Lines.text(Json.of(recorded).toString()));
    }

    private List<JsonNode> record(JsonNode lines) throws Exception {
        List<JsonNode> recorded = new ArrayList<>();
        for (JsonNode line : lines) {
            recorded.add(apply(line));
        }
        crash();
        return recorded;
    }

    private JsonNode apply(JsonNode op) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            apply(op, result);
            result.put("ok", true);
        } catch (ExecutionException e) {
            failed(result, e.getCause());
        } catch (Exception e) {
            failed(result, e);
        }
        ObjectNode line = op.deepCopy();
        line.set("result", Json.of(result));
        state(line);
        return line;
    }

    private static void failed(Map<String, Object> result, Throwable e) {
        result.put("ok", false);
        result.put("error", e.getClass().getSimpleName());
        result.put("message", String.valueOf(e.getMessage()));
    }

    // -- the state ----------------------------------------------------------------------------------------------------

    private void state(ObjectNode line) throws Exception {
        if (topic == null) {
            told.clear();
            return;
        }
        settle();
        Map<String, Object> after = new TreeMap<>();
        for (Map.Entry<String, ManagedCursorImpl> one : cursors.entrySet()) {
            Object state = state(one.getValue());
            if (!state.equals(told.put(one.getKey(), state))) {
                after.put(one.getKey(), state);
            }
        }
        Object ledgers = topicState();
        if (!ledgers.equals(told.put("", ledgers))) {
            line.set("ml", Json.of(ledgers));
        }
        if (!after.isEmpty()) {
            line.set("after", Json.of(after));
        }
    }

    /** Until nothing goes on in the background. */
    private void settle() throws Exception {
        Object before = null;
        long until = System.currentTimeMillis() + SETTLE_MILLIS;
        for (int same = 0; same < 2 && System.currentTimeMillis() < until;) {
            Thread.sleep(POLL_MILLIS);
            CompletableFuture<Void> barrier = new CompletableFuture<>();
            topic.getExecutor().execute(() -> barrier.complete(null));
            barrier.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            List<Object> state = new ArrayList<>();
            state.add(topicState());
            boolean busy = !List.of("LedgerOpened", "Terminated", "Fenced", "Closed").contains(topic.getState().name());
            for (ManagedCursorImpl cursor : cursors.values()) {
                state.add(state(cursor));
                state.add(cursor.getState());
                busy |= cursor.getState().equals("SwitchingLedger");
            }
            same = !busy && state.equals(before) ? same + 1 : 0;
            before = state;
        }
    }

    private Map<String, Object> topicState() {
        Map<String, Object> state = new LinkedHashMap<>();
        List<Object> ledgers = new ArrayList<>();
        topic.getLedgersInfo().forEach((id, info) -> {
            if (!numbers.containsKey(id)) {
                numbers.put(id, ids.size());
                ids.add(id);
            }
            ledgers.add(List.of("L" + numbers.get(id), info.hasEntries() ? info.getEntries() : 0,
                    info.hasSize() ? info.getSize() : 0));
        });
        state.put("state", topic.getState().name());
        state.put("ledgers", ledgers);
        state.put("last_confirmed", named(topic.getLastConfirmedEntry()));
        state.put("entries", topic.getNumberOfEntries());
        state.put("size", topic.getTotalSize());
        return state;
    }

    private Map<String, Object> state(ManagedCursorImpl cursor) {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("mark_delete", named(cursor.getMarkDeletedPosition()));
        state.put("read", named(cursor.getReadPosition()));
        state.put("backlog_precise", cursor.getNumberOfEntriesInBacklog(true));
        state.put("entries", cursor.getNumberOfEntries());
        state.put("has_more", cursor.hasMoreEntries());
        List<Object> ranges = new ArrayList<>();
        for (Range<Position> range : cursor.getIndividuallyDeletedMessagesSet().asRanges()) {
            ranges.add(List.of(named(range.lowerEndpoint()), named(range.upperEndpoint())));
        }
        state.put("ranges", ranges);
        Map<String, Object> batch = new LinkedHashMap<>();
        if (cursor.getBatchDeletedIndexes() != null) {
            new TreeMap<>(cursor.getBatchDeletedIndexes()).forEach((at, left) ->
                    batch.put(named(at), left.stream().boxed().toList()));
        }
        state.put("batch", cursor.getBatchDeletedIndexes() == null ? null : batch);
        state.put("properties", new TreeMap<>(cursor.getProperties()));
        state.put("cursor_properties", new TreeMap<>(cursor.getCursorProperties()));
        return state;
    }

    // -- names --------------------------------------------------------------------------------------------------------

    private String named(Position position) {
        if (position.compareTo(PositionFactory.EARLIEST) == 0) {
            return "EARLIEST";
        }
        if (position.compareTo(PositionFactory.LATEST) == 0) {
            return "LATEST";
        }
        long id = position.getLedgerId();
        String ledger = numbers.containsKey(id) ? "L" + numbers.get(id)
                : !ids.isEmpty() && id == ids.get(0) - 1 ? "LBEFORE"
                : !ids.isEmpty() && id == ids.get(0) + LAFTER ? "LAFTER" : "R" + id;
        return ledger + ":" + position.getEntryId();
    }

    private long ledger(String name) {
        return switch (name) {
            case "LBEFORE" -> ids.get(0) - 1;
            case "LAFTER" -> ids.get(0) + LAFTER;
            default -> ids.get(Integer.parseInt(name.substring(1)));
        };
    }

    private Position position(String name) {
        if (name.equals("EARLIEST")) {
            return PositionFactory.EARLIEST;
        }
        if (name.equals("LATEST")) {
            return PositionFactory.LATEST;
        }
        String[] parts = name.split(":");
        return PositionFactory.create(ledger(parts[0]), Long.parseLong(parts[1]));
    }

    private List<Position> positions(JsonNode op) {
        List<Position> positions = new ArrayList<>();
        op.get("positions").forEach(one -> positions.add(position(one.asText())));
        return positions;
    }

    /** A position with the set of what an acknowledgment leaves of its batch. */
    private Position withAckSet(JsonNode op) {
        Position position = position(op.get("position").asText());
        BitSet left = new BitSet();
        if (op.has("batch_size")) {
            left.set(0, op.get("batch_size").asInt());
            op.get("acked").forEach(index -> left.clear(index.asInt()));
        }
        return AckSetStateUtil.createPositionWithAckSet(
                position.getLedgerId(), position.getEntryId(), left.toLongArray());
    }

    private ManagedCursorImpl cursor(JsonNode op) {
        ManagedCursorImpl cursor = cursors.get(op.get("cursor").asText());
        if (cursor == null) {
            throw new IllegalStateException("no cursor " + op.get("cursor"));
        }
        return cursor;
    }

    private static Map<String, Long> longs(JsonNode properties) {
        Map<String, Long> longs = new LinkedHashMap<>();
        properties.fields().forEachRemaining(one -> longs.put(one.getKey(), one.getValue().asLong()));
        return longs;
    }

    private static Map<String, String> strings(JsonNode properties) {
        Map<String, String> strings = new LinkedHashMap<>();
        properties.fields().forEachRemaining(one -> strings.put(one.getKey(), one.getValue().asText()));
        return strings;
    }

    private static <T> T get(CompletableFuture<T> future) throws Exception {
        return future.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    // -- operations ---------------------------------------------------------------------------------------------------

    private void apply(JsonNode op, Map<String, Object> result) throws Exception {
        switch (op.get("op").asText()) {
            case "open" -> open(op, result);
            case "close" -> {
                topic.close();
                factory.shutdown();
                forget();
            }
            case "crash" -> crash();
            case "add" -> add(op, result);
            case "roll" -> topic.rollCurrentLedgerIfFull();
            case "trim" -> {
                CompletableFuture<Void> done = new CompletableFuture<>();
                topic.trimConsumedLedgersInBackground(done);
                get(done);
            }
            case "truncate" -> get(topic.asyncTruncate());
            case "clock" -> now += op.get("advance_ms").asLong();
            case "quorum" -> topic.getConfig().setEnsembleSize(op.get("n").asInt())
                    .setWriteQuorumSize(op.get("n").asInt()).setAckQuorumSize(op.get("n").asInt());
            case "open_cursor" -> cursors.put(op.get("cursor").asText(), (ManagedCursorImpl) topic.openCursor(
                    op.get("cursor").asText(),
                    op.path("initial").asText("latest").equals("earliest")
                            ? InitialPosition.Earliest : InitialPosition.Latest,
                    longs(op.path("properties")), strings(op.path("cursor_properties"))));
            case "close_cursor" -> {
                cursor(op).close();
                cursors.remove(op.get("cursor").asText());
            }
            case "delete_cursor" -> {
                topic.deleteCursor(op.get("cursor").asText());
                cursors.remove(op.get("cursor").asText());
            }
            case "list_cursors" -> {
                result.put("cursors", new ArrayList<>(cursors.keySet()));
                List<String> stored = new ArrayList<>(get(originals.metadata.getChildren(path())));
                stored.sort(null);
                result.put("stored", stored);
            }
            case "plant_cursor_ledger" -> plantLedger(op);
            case "dump", "observe" -> { }
            default -> applyToCursor(op, result);
        }
    }

    private void applyToCursor(JsonNode op, Map<String, Object> result) throws Exception {
        ManagedCursorImpl cursor = cursor(op);
        switch (op.get("op").asText()) {
            case "ack" -> {
                AtomicInteger callbacks = new AtomicInteger();
                Done done = new Done(callbacks);
                cursor.asyncDelete(positions(op), done, null);
                try {
                    get(done.future);
                } finally {
                    result.put("callbacks", callbacks.get());
                }
            }
            case "ack_each" -> {
                List<Done> each = new ArrayList<>();
                for (Position position : positions(op)) {
                    each.add(new Done(new AtomicInteger()));
                    cursor.asyncDelete(position, each.get(each.size() - 1), null);
                }
                int failed = 0;
                for (Done done : each) {
                    try {
                        get(done.future);
                    } catch (ExecutionException e) {
                        failed++;
                    }
                }
                result.put("failed", failed);
            }
            case "ack_batch" -> {
                Done done = new Done(new AtomicInteger());
                cursor.asyncDelete(withAckSet(op), done, null);
                get(done.future);
            }
            case "mark_delete", "mark_delete_batch" -> {
                boolean batch = op.get("op").asText().equals("mark_delete_batch");
                Position position = batch ? withAckSet(op) : position(op.get("position").asText());
                Done done = new Done(new AtomicInteger());
                if (op.has("properties")) {
                    cursor.asyncMarkDelete(position, longs(op.get("properties")), done, null);
                } else {
                    cursor.asyncMarkDelete(position, done, null);
                }
                get(done.future);
            }
            case "reset" -> {
                Position position = op.has("acked") ? withAckSet(op) : position(op.get("position").asText());
                Done done = new Done(new AtomicInteger());
                cursor.asyncResetCursor(position, op.path("force").asBoolean(), done);
                get(done.future);
            }
            case "read" -> {
                Done done = new Done(new AtomicInteger());
                if (cursor.hasMoreEntries()) {
                    cursor.asyncReadEntries(op.get("n").asInt(), done, null, PositionFactory.LATEST);
                    get(done.future);
                }
                result.put("positions", done.read);
            }
            case "replay" -> {
                Done done = new Done(new AtomicInteger());
                Set<? extends Position> acked = cursor.asyncReplayEntries(new HashSet<>(positions(op)), done, null);
                get(done.future);
                result.put("already_acked", acked.stream().map(this::named).toList());
                result.put("positions", done.read);
            }
            case "nth" -> {
                Entry entry = cursor.getNthEntry(op.get("n").asInt(), deleted(op));
                result.put("position", entry == null ? null : named(entry.getPosition()));
            }
            case "skip" -> cursor.skipEntries(op.get("n").asInt(), deleted(op));
            case "clear_backlog" -> cursor.clearBacklog();
            case "rewind" -> cursor.rewind();
            case "seek" -> cursor.seek(position(op.get("position").asText()), op.path("force").asBoolean());
            case "flush" -> call(cursor, "flush");
            case "periodic_rollover" -> result.put("result", cursor.periodicRollover());
            case "is_acked" -> result.put("acked", positions(op).stream().map(cursor::isMessageDeleted).toList());
            case "next_available" -> result.put("next",
                    positions(op).stream().map(cursor::getNextAvailablePosition).map(this::named).toList());
            case "put_property" -> result.put("result",
                    cursor.putProperty(op.get("name").asText(), op.get("value").asLong()));
            case "remove_property" -> result.put("result", cursor.removeProperty(op.get("name").asText()));
            case "set_cursor_properties" -> get(cursor.setCursorProperties(strings(op.get("cursor_properties"))));
            case "put_cursor_property" -> get(
                    cursor.putCursorProperty(op.get("name").asText(), op.get("value").asText()));
            case "remove_cursor_property" -> get(cursor.removeCursorProperty(op.get("name").asText()));
            case "break_cursor_ledger" -> ((LedgerHandle) field(cursor, "cursorLedger")).close();
            case "bump_cursor_info" -> {
                var stored = get(originals.metadata.get(path() + "/" + op.get("cursor").asText())).get();
                get(originals.metadata.put(stored.getStat().getPath(), stored.getValue(), Optional.empty()));
            }
            case "add_range" -> {
                Object set = field(cursor, "individualDeletedMessages");
                Method add = set.getClass().getMethod("addOpenClosed", long.class, long.class, long.class, long.class);
                add.setAccessible(true);
                Position from = position(op.get("from").asText());
                Position to = position(op.get("to").asText());
                add.invoke(set, from.getLedgerId(), from.getEntryId(), to.getLedgerId(), to.getEntryId());
            }
            default -> throw new IllegalArgumentException("operation " + op.get("op"));
        }
    }

    private static IndividualDeletedEntries deleted(JsonNode op) {
        return op.get("acked_entries").asText().equals("include")
                ? IndividualDeletedEntries.Include : IndividualDeletedEntries.Exclude;
    }

    private static Object field(Object owner, String name) throws Exception {
        Field field = ManagedCursorImpl.class.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    private static void call(Object owner, String name) throws Exception {
        Method method = ManagedCursorImpl.class.getDeclaredMethod(name);
        method.setAccessible(true);
        method.invoke(owner);
    }

    // -- the topic ----------------------------------------------------------------------------------------------------

    private String path() {
        return "/managed-ledgers/" + name;
    }

    private void open(JsonNode op, Map<String, Object> result) throws Exception {
        if (op.has("config")) {
            config.setAll((ObjectNode) op.get("config"));
        }
        if (factory != null) {
            crash();
        }
        ManagedLedgerFactoryConfig settings = new ManagedLedgerFactoryConfig();
        settings.setCursorPositionFlushSeconds(NEVER_SECONDS);
        settings.setNumManagedLedgerSchedulerThreads(SCHEDULERS);
        settings.setManagedLedgerInfoCompressionType(config.path("managedLedgerInfoCompressionType").asText("NONE"));
        settings.setManagedCursorInfoCompressionType(config.path("managedCursorInfoCompressionType").asText("NONE"));
        settings.setManagedLedgerInfoCompressionThresholdInBytes(
                config.path("managedLedgerInfoCompressionThresholdInBytes").asLong(0));
        settings.setManagedCursorInfoCompressionThresholdInBytes(
                config.path("managedCursorInfoCompressionThresholdInBytes").asLong(0));
        factory = new ManagedLedgerFactoryImpl(originals.metadata, originals.client, settings);
        try {
            CompletableFuture<ManagedLedgerImpl> opened = new CompletableFuture<>();
            factory.asyncOpen(name, configuration(), new AsyncCallbacks.OpenLedgerCallback() {
                @Override
                public void openLedgerComplete(ManagedLedger ledger, Object context) {
                    opened.complete((ManagedLedgerImpl) ledger);
                }

                @Override
                public void openLedgerFailed(ManagedLedgerException e, Object context) {
                    opened.completeExceptionally(e);
                }
            }, null, null);
            topic = get(opened);
        } catch (Exception e) {
            crash();
            throw e;
        }
        for (ManagedCursor one : topic.getCursors()) {
            cursors.put(one.getName(), (ManagedCursorImpl) one);
        }
        result.put("cursors", new ArrayList<>(cursors.keySet()));
    }

    private ManagedLedgerConfig configuration() {
        ManagedLedgerConfig given = new ManagedLedgerConfig();
        given.setEnsembleSize(1).setWriteQuorumSize(1).setAckQuorumSize(1);
        given.setDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C);
        given.setPassword("");
        given.setClock(new Standing());
        given.setMinimumRolloverTime(0, TimeUnit.SECONDS);
        given.setMaxEntriesPerLedger(config.path("maxEntriesPerLedger").asInt(50_000));
        given.setUnackedRangesOpenCacheSetEnabled(config.path("unackedRangesOpenCacheSetEnabled").asBoolean(true));
        given.setPersistIndividualAckAsLongArray(config.path("persistIndividualAckAsLongArray").asBoolean(true));
        given.setDeletionAtBatchIndexLevelEnabled(config.path("deletionAtBatchIndexLevelEnabled").asBoolean(true));
        given.setMaxUnackedRangesToPersist(config.path("maxUnackedRangesToPersist").asInt(10_000));
        given.setMaxUnackedRangesToPersistInMetadataStore(
                config.path("maxUnackedRangesToPersistInMetadataStore").asInt(1_000));
        given.setMaxBatchDeletedIndexToPersist(config.path("maxBatchDeletedIndexToPersist").asInt(10_000));
        given.setMetadataMaxEntriesPerLedger(config.path("metadataMaxEntriesPerLedger").asInt(50_000));
        given.setMetadataEnsembleSize(1).setMetadataWriteQuorumSize(1).setMetadataAckQuorumSize(1);
        if (config.has("ledgerRolloverTimeout")) {
            given.setLedgerRolloverTimeout(config.get("ledgerRolloverTimeout").asInt());
        }
        given.setThrottleMarkDelete(config.path("throttleMarkDelete").asDouble(0));
        given.setRetentionTime(config.path("retentionTimeMs").asInt(0), TimeUnit.MILLISECONDS);
        given.setRetentionSizeInMB(config.path("retentionSizeInMB").asLong(0));
        given.setLedgerForceRecovery(config.path("ledgerForceRecovery").asBoolean(false));
        return given;
    }

    /** Nothing is closed or written: what is under way ends nowhere. */
    private void crash() {
        if (factory != null) {
            factory.getScheduledExecutor().forceShutdown(CRASH_MILLIS, TimeUnit.MILLISECONDS);
            factory.getCacheEvictionExecutor().shutdownNow();
        }
        forget();
    }

    private void forget() {
        factory = null;
        topic = null;
        cursors.clear();
    }

    private void add(JsonNode op, Map<String, Object> result) throws Exception {
        List<Done> each = new ArrayList<>();
        for (int i = 0; i < op.get("n").asInt(); i++) {
            byte[] text = ("e" + added++).getBytes(StandardCharsets.US_ASCII);
            byte[] payload = Arrays.copyOf(text, Math.max(text.length, op.path("size").asInt(0)));
            each.add(new Done(new AtomicInteger()));
            topic.asyncAddEntry(payload, each.get(i), null);
        }
        List<Position> positions = new ArrayList<>();
        for (Done done : each) {
            get(done.future);
            positions.add(done.added);
        }
        settle();
        List<List<Object>> runs = new ArrayList<>();
        for (Position position : positions) {
            String ledger = "L" + numbers.get(position.getLedgerId());
            if (runs.isEmpty() || !runs.get(runs.size() - 1).get(0).equals(ledger)) {
                runs.add(new ArrayList<>(List.of(ledger, position.getEntryId(), position.getEntryId())));
            }
            runs.get(runs.size() - 1).set(2, position.getEntryId());
        }
        result.put("positions", runs);
    }

    // -- what is planted ----------------------------------------------------------------------------------------------

    private void plantLedger(JsonNode op) throws Exception {
        LedgerHandle ledger = originals.client.createLedger(1, 1, 1, DigestType.CRC32C, new byte[0]);
        for (JsonNode entry : op.get("entries")) {
            ledger.addEntry(entry.isTextual() ? Base64.getDecoder().decode(entry.asText()) : encoded(entry));
        }
        ledger.close();
        String path = path() + "/" + op.get("cursor").asText();
        byte[] record = get(originals.metadata.get(path)).get().getValue();
        ManagedCursorInfo info = new MetaStoreImpl(null, null).parseManagedCursorInfo(record);
        ManagedCursorInfo changed = new ManagedCursorInfo().copyFrom(info);
        changed.setCursorsLedgerId(ledger.getId());
        changed.clearIndividualDeletedMessages();
        changed.clearBatchedEntryDeletionIndexInfo();
        get(originals.metadata.put(path, changed.toByteArray(), Optional.empty()));
        if (op.path("delete_ledger").asBoolean()) {
            originals.client.deleteLedger(ledger.getId());
        }
    }

    private byte[] encoded(JsonNode entry) {
        PositionInfo info = new PositionInfo();
        Position at = position(entry.get("mark_delete").asText());
        info.setLedgerId(at.getLedgerId()).setEntryId(at.getEntryId());
        for (JsonNode range : entry.path("ranges")) {
            MessageRange one = info.addIndividualDeletedMessage();
            Position lower = position(range.get(0).asText());
            Position upper = position(range.get(1).asText());
            one.setLowerEndpoint().setLedgerId(lower.getLedgerId()).setEntryId(lower.getEntryId());
            one.setUpperEndpoint().setLedgerId(upper.getLedgerId()).setEntryId(upper.getEntryId());
        }
        longs(entry.path("properties")).forEach((key, value) -> info.addProperty().setName(key).setValue(value));
        for (JsonNode batch : entry.path("batch")) {
            BatchedEntryDeletionIndexInfo one = info.addBatchedEntryDeletionIndexInfo();
            Position position = position(batch.get(0).asText());
            one.setPosition().setLedgerId(position.getLedgerId()).setEntryId(position.getEntryId());
            BitSet left = new BitSet();
            batch.get(1).forEach(index -> left.set(index.asInt()));
            for (long word : left.toLongArray()) {
                one.addDeleteSet(word);
            }
        }
        for (JsonNode words : entry.path("long_arrays")) {
            LongListMap map = info.addIndividualDeletedMessageRange();
            map.setKey(ledger(words.get(0).asText()));
            ((ArrayNode) words.get(1)).forEach(word -> map.addValue(new BigInteger(word.asText(), 16).longValue()));
        }
        byte[] whole = info.toByteArray();
        return Arrays.copyOf(whole, whole.length - entry.path("cut").asInt(0));
    }

    private final class Standing extends Clock {
        @Override
        public long millis() {
            return now;
        }

        @Override
        public Instant instant() {
            return Instant.ofEpochMilli(now);
        }

        @Override
        public ZoneId getZone() {
            return ZoneId.of("UTC");
        }

        @Override
        public Clock withZone(ZoneId zone) {
            return this;
        }
    }

    /** One callback for all kinds of calls. */
    private final class Done implements AsyncCallbacks.DeleteCallback, AsyncCallbacks.MarkDeleteCallback,
            AsyncCallbacks.ResetCursorCallback, AsyncCallbacks.ReadEntriesCallback, AsyncCallbacks.AddEntryCallback {

        private final CompletableFuture<Void> future = new CompletableFuture<>();
        private final AtomicInteger calls;
        private List<String> read = List.of();
        private Position added;

        Done(AtomicInteger calls) {
            this.calls = calls;
        }

        private void done() {
            calls.incrementAndGet();
            future.complete(null);
        }

        private void failed(ManagedLedgerException e) {
            calls.incrementAndGet();
            future.completeExceptionally(e);
        }

        @Override
        public void deleteComplete(Object context) {
            done();
        }

        @Override
        public void deleteFailed(ManagedLedgerException e, Object context) {
            failed(e);
        }

        @Override
        public void markDeleteComplete(Object context) {
            done();
        }

        @Override
        public void markDeleteFailed(ManagedLedgerException e, Object context) {
            failed(e);
        }

        @Override
        public void resetComplete(Object context) {
            done();
        }

        @Override
        public void resetFailed(ManagedLedgerException e, Object context) {
            failed(e);
        }

        @Override
        public void readEntriesComplete(List<Entry> entries, Object context) {
            read = entries.stream().map(entry -> named(entry.getPosition())).toList();
            entries.forEach(Entry::release);
            done();
        }

        @Override
        public void readEntriesFailed(ManagedLedgerException e, Object context) {
            failed(e);
        }

        @Override
        public void addComplete(Position position, io.netty.buffer.ByteBuf entry, Object context) {
            added = position;
            done();
        }

        @Override
        public void addFailed(ManagedLedgerException e, Object context) {
            failed(e);
        }
    }
}
