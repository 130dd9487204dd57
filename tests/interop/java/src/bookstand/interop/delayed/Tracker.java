package bookstand.interop.delayed;

import static org.mockito.ArgumentMatchers.any;
import static org.mockito.Mockito.doAnswer;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;
import static org.mockito.Mockito.withSettings;

import bookstand.interop.Json;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.util.Timeout;
import io.netty.util.Timer;
import io.netty.util.TimerTask;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.delayed.DelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.bucket.BucketDelayedDeliveryTracker;
import org.apache.pulsar.broker.service.persistent.AbstractPersistentDispatcherMultipleConsumers;

/** The original's tracker of delayed messages with a clock, a timer and storage of the recorder's. */
final class Tracker {

    private final JsonNode settings;
    private final SnapshotCalls calls;
    private final Deque<Alarm> cancelled = new ArrayDeque<>();
    private final List<Alarm> armed = new ArrayList<>();
    private final List<List<Object>> alarms = new ArrayList<>();
    private Position markDelete;
    private long now;
    private int reads;
    private DelayedDeliveryTracker tracker;
    private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);

    Tracker(JsonNode settings) throws Exception {
        this.settings = settings;
        this.now = settings.get("start_ms").asLong();
        this.calls = new SnapshotCalls(settings.path("first_bucket_id").asLong(1));
    }

    /** Each operation with its outcome. */
    static List<JsonNode> record(JsonNode scenario) throws Exception {
        Tracker recorder = new Tracker(scenario.get("settings"));
        List<JsonNode> recorded = new ArrayList<>();
        for (JsonNode operation : scenario.get("ops")) {
            recorded.add(recorder.apply(operation));
        }
        return recorded;
    }

    private JsonNode apply(JsonNode operation) {
        Map<String, Object> outcome = new LinkedHashMap<>();
        reads = 0;
        alarms.clear();
        calls.log.clear();
        try {
            apply(operation, outcome);
        } catch (Throwable e) {
            outcome.put("throws", described(e));
        }
        if (!calls.log.isEmpty()) {
            outcome.put("io", List.copyOf(calls.log));
        }
        if (!alarms.isEmpty()) {
            outcome.put("timer", List.copyOf(alarms));
        }
        if (tracker != null) {
            outcome.put("state", state());
            if (tracker instanceof BucketDelayedDeliveryTracker) {
                outcome.put("buckets", buckets());
            }
        }
        ObjectNode recorded = operation.deepCopy();
        recorded.setAll((ObjectNode) Json.of(outcome));
        return recorded;
    }

    private List<Object> state() {
        List<Object> state = new ArrayList<>();
        state.add(tracker.getNumberOfDelayedMessages());
        state.add(tracker.getBufferMemoryUsage());
        state.add(armed.isEmpty() ? null : armed.get(armed.size() - 1).target);
        return state;
    }

    private List<Object> buckets() {
        List<Object> buckets = new ArrayList<>();
        ((BucketDelayedDeliveryTracker) tracker).getImmutableBuckets().asMapOfRanges().keySet()
                .forEach(range -> buckets.add(List.of(range.lowerEndpoint(), range.upperEndpoint())));
        return buckets;
    }

    private static String described(Throwable e) {
        StringBuilder names = new StringBuilder(e.getClass().getSimpleName());
        for (Throwable cause = e.getCause(); cause != null; cause = cause.getCause()) {
            names.append(" <- ").append(cause.getClass().getSimpleName());
        }
        return names.toString();
    }

    private void apply(JsonNode op, Map<String, Object> outcome) throws Exception {
        switch (op.get("op").asText()) {
            case "open" -> tracker = opened(settings);
            case "clock" -> now = op.get("ms").asLong();
            case "add" -> outcome.put("result", tracker.addMessage(
                    op.get("ledger").asLong(), op.get("entry").asLong(), op.get("deliver_at").asLong()));
            case "add_many" -> addMany(op, outcome);
            case "get_scheduled" -> outcome.put("result", tracker.getScheduledMessages(op.get("max").asInt()).stream()
                    .map(one -> List.of(one.getLedgerId(), one.getEntryId())).toList());
            case "has_available" -> outcome.put("result", tracker.hasMessageAvailable());
            case "should_pause" -> outcome.put("result", tracker.shouldPauseAllDeliveries());
            case "contains" -> outcome.put("result", bucketTracker().containsMessage(
                    op.get("ledger").asLong(), op.get("entry").asLong()));
            case "contains_many" -> {
                StringBuilder found = new StringBuilder();
                for (JsonNode one : op.get("positions")) {
                    found.append(bucketTracker().containsMessage(one.get(0).asLong(), one.get(1).asLong()) ? '1' : '0');
                }
                outcome.put("result", found.toString());
            }
            case "fire" -> {
                outcome.put("result", fire());
                outcome.put("reads", reads);
            }
            case "fire_stale", "fire_cancelled" -> {
                boolean stale = op.get("op").asText().equals("fire_stale");
                Alarm alarm = stale ? cancelled.pollLast() : cancelled.peekLast();
                if (alarm != null) {
                    alarm.looksLive = stale;
                    alarm.task.run(alarm);
                }
                outcome.put("result", alarm != null);
                outcome.put("reads", reads);
            }
            case "reset_tick" -> tracker.resetTickTime(op.get("ms").asLong());
            case "mark_delete" -> markDelete =
                    PositionFactory.create(op.get("ledger").asLong(), op.get("entry").asLong());
            case "clear" -> {
                last = tracker.clear();
                outcome.put("future", future());
            }
            case "future" -> outcome.put("future", future());
            case "close" -> {
                close();
                outcome.put("future", future());
            }
            case "reopen" -> reopen(op, outcome);
            case "properties" -> outcome.put("result", new LinkedHashMap<>(calls.properties));
            case "snapshots" -> outcome.put("result", calls.lengths());
            default -> calls.apply(op, outcome);
        }
    }

    private BucketDelayedDeliveryTracker bucketTracker() {
        return (BucketDelayedDeliveryTracker) tracker;
    }

    private void addMany(JsonNode op, Map<String, Object> outcome) {
        StringBuilder tracked = new StringBuilder();
        for (JsonNode one : op.get("messages")) {
            boolean added = tracker.addMessage(one.get(0).asLong(), one.get(1).asLong(), one.get(2).asLong());
            tracked.append(added ? '1' : '0');
        }
        outcome.put("result", tracked.toString());
    }

    private String future() {
        if (!last.isDone()) {
            return "pending";
        }
        try {
            last.join();
            return "done";
        } catch (CompletionException e) {
            return "failed: " + described(e);
        }
    }

    private int fire() throws Exception {
        int rang = 0;
        while (true) {
            Alarm next = armed.stream().filter(alarm -> alarm.target <= now)
                    .min(Comparator.comparingLong(alarm -> alarm.target)).orElse(null);
            if (next == null) {
                return rang;
            }
            armed.remove(next);
            next.expired = true;
            next.task.run(next);
            rang++;
        }
    }

    private void close() {
        if (tracker instanceof BucketDelayedDeliveryTracker bucket) {
            last = bucket.closeAsync();
        } else {
            tracker.close();
        }
        tracker = null;
    }

    private void reopen(JsonNode op, Map<String, Object> outcome) throws Exception {
        if (op.get("mode").asText().equals("close")) {
            if (tracker != null) {
                close();
            }
            outcome.put("future", future());
        } else {
            tracker = null;
            armed.clear();
            cancelled.clear();
            calls.held.clear();
        }
        calls.releaseAll();
        ObjectNode changed = settings.deepCopy();
        if (op.has("settings")) {
            changed.setAll((ObjectNode) op.get("settings"));
        }
        tracker = opened(changed);
        outcome.put("result", "open");
    }

    private DelayedDeliveryTracker opened(JsonNode given) throws Exception {
        AbstractPersistentDispatcherMultipleConsumers dispatcher =
                mock(AbstractPersistentDispatcherMultipleConsumers.class, withSettings().stubOnly());
        ManagedCursor cursor = cursor();
        String subscription = URLDecoder.decode(given.path("cursor").asText(), StandardCharsets.UTF_8);
        when(dispatcher.getName()).thenReturn(given.path("topic").asText() + " / " + subscription);
        when(dispatcher.getCursor()).thenReturn(cursor);
        doAnswer(call -> {
            reads++;
            return null;
        }).when(dispatcher).readMoreEntriesAsync();
        boolean strict = given.get("strict").asBoolean();
        long tick = given.get("tick_ms").asLong();
        if (given.get("tracker").asText().equals("in_memory")) {
            return new InMemoryDelayedDeliveryTracker(dispatcher, new Alarms(), tick, new Clocks(), strict,
                    given.path("fixed_delay_detection_lookahead").asLong(0));
        }
        return new BucketDelayedDeliveryTracker(dispatcher, new Alarms(), tick, new Clocks(), strict, calls,
                given.get("min_index_count_per_bucket").asLong(), given.get("time_step_per_segment_ms").asLong(),
                given.get("max_indexes_per_segment").asInt(), given.get("max_num_buckets").asInt());
    }

    private ManagedCursor cursor() {
        ManagedCursor cursor = mock(ManagedCursor.class, withSettings().stubOnly());
        ManagedLedger ledger = mock(ManagedLedger.class, withSettings().stubOnly());
        when(ledger.getName()).thenReturn(settings.path("topic").asText());
        when(cursor.getName()).thenReturn(settings.path("cursor").asText());
        when(cursor.getManagedLedger()).thenReturn(ledger);
        when(cursor.getCursorProperties()).thenAnswer(call -> calls.properties);
        when(cursor.getMarkDeletedPosition()).thenAnswer(call -> markDelete);
        when(cursor.putCursorProperty(any(), any()))
                .thenAnswer(call -> calls.put(call.getArgument(0), call.getArgument(1)));
        when(cursor.removeCursorProperty(any())).thenAnswer(call -> calls.remove(call.getArgument(0)));
        return cursor;
    }

    private final class Clocks extends Clock {
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

    private final class Alarms implements Timer {
        @Override
        public Timeout newTimeout(TimerTask task, long delay, TimeUnit unit) {
            Alarm alarm = new Alarm(this, task, now + unit.toMillis(delay));
            armed.add(alarm);
            alarms.add(List.of("arm", unit.toMillis(delay), alarm.target));
            return alarm;
        }

        @Override
        public Set<Timeout> stop() {
            return Set.of();
        }
    }

    private final class Alarm implements Timeout {
        private final Timer timer;
        private final TimerTask task;
        private final long target;
        private boolean wasCancelled;
        private boolean looksLive;
        private boolean expired;

        Alarm(Timer timer, TimerTask task, long target) {
            this.timer = timer;
            this.task = task;
            this.target = target;
        }

        @Override
        public Timer timer() {
            return timer;
        }

        @Override
        public TimerTask task() {
            return task;
        }

        @Override
        public boolean isExpired() {
            return expired;
        }

        @Override
        public boolean isCancelled() {
            return wasCancelled && !looksLive;
        }

        @Override
        public boolean cancel() {
            if (!armed.remove(this)) {
                return false;
            }
            wasCancelled = true;
            cancelled.addLast(this);
            alarms.add(List.of("cancel", target));
            return true;
        }
    }
}
