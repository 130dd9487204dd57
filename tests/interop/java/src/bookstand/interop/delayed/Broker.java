package bookstand.interop.delayed;

import static bookstand.interop.Lines.bytes;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.ArgumentMatchers.anyBoolean;
import static org.mockito.ArgumentMatchers.anyInt;
import static org.mockito.ArgumentMatchers.anyLong;
import static org.mockito.Mockito.doAnswer;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;
import static org.mockito.Mockito.withSettings;

import io.netty.util.Timer;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableSet;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.delayed.bucket.BucketDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.bucket.BucketSnapshotStorage;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;
import org.apache.pulsar.broker.service.persistent.AbstractPersistentDispatcherMultipleConsumers;

/** As much of a broker as a tracker asks: a clock, a cursor that has properties, and a place for snapshots. */
final class Broker {

    /** Settings of a tracker; the step is in milliseconds. */
    record Figures(long least, long step, int most) { }

    final Map<String, String> properties = new LinkedHashMap<>();
    final List<byte[]> created = new ArrayList<>();
    long now;
    private final Map<Long, List<byte[]>> snapshots = new HashMap<>();

    /** A snapshot of ours, and its property. */
    void put(String key, long ledger, String[] entries) {
        List<byte[]> stored = new ArrayList<>();
        for (String entry : entries) {
            stored.add(bytes(entry));
        }
        snapshots.put(ledger, stored);
        properties.put(key, String.valueOf(ledger));
    }

    BucketDelayedDeliveryTracker tracker(Figures figures) throws Exception {
        AbstractPersistentDispatcherMultipleConsumers dispatcher =
                mock(AbstractPersistentDispatcherMultipleConsumers.class, withSettings().stubOnly());
        ManagedCursor cursor = cursor();
        when(dispatcher.getName()).thenReturn("topic / subscription");
        when(dispatcher.getCursor()).thenReturn(cursor);
        return new BucketDelayedDeliveryTracker(dispatcher, mock(Timer.class), 1, new Standing(), true, new Snapshots(),
                figures.least(), figures.step(), figures.most(), -1);
    }

    /** All that is due, a few at a time, until there is no more. */
    NavigableSet<Position> delivered(BucketDelayedDeliveryTracker tracker) {
        NavigableSet<Position> delivered = new TreeSet<>();
        int before;
        do {
            before = delivered.size();
            for (Position position : tracker.getScheduledMessages(7)) {
                if (!delivered.add(position)) {
                    throw new IllegalStateException("delivered again: " + position);
                }
            }
        } while (delivered.size() > before);
        return delivered;
    }

    private ManagedCursor cursor() {
        ManagedCursor cursor = mock(ManagedCursor.class, withSettings().stubOnly());
        when(cursor.getName()).thenReturn("subscription");
        when(cursor.getCursorProperties()).thenReturn(properties);
        when(cursor.getMarkDeletedPosition()).thenReturn(PositionFactory.create(-1, -1));
        when(cursor.putCursorProperty(any(), any())).thenAnswer(call -> {
            properties.put(call.getArgument(0), call.getArgument(1));
            return CompletableFuture.completedFuture(null);
        });
        when(cursor.removeCursorProperty(any())).thenAnswer(call -> {
            properties.remove(call.<String>getArgument(0));
            return CompletableFuture.completedFuture(null);
        });
        return cursor;
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

    /** The original's storage parses entries just so, and stores what the messages serialize to. */
    private final class Snapshots implements BucketSnapshotStorage {
        @Override
        public CompletableFuture<Long> createBucketSnapshot(SnapshotMetadata metadata, List<SnapshotSegment> segments,
                String key, String topic, String cursor) {
            created.add(metadata.toByteArray());
            segments.forEach(segment -> created.add(segment.toByteArray()));
            return CompletableFuture.completedFuture(1L);
        }

        @Override
        public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long id) {
            SnapshotMetadata metadata = new SnapshotMetadata();
            metadata.parseFrom(snapshots.get(id).get(0));
            return CompletableFuture.completedFuture(metadata);
        }

        @Override
        public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(long id, long first, long last) {
            List<SnapshotSegment> segments = new ArrayList<>();
            for (long number = first; number <= last; number++) {
                SnapshotSegment segment = new SnapshotSegment();
                segment.parseFrom(snapshots.get(id).get((int) number));
                segments.add(segment);
            }
            return CompletableFuture.completedFuture(segments);
        }

        @Override
        public CompletableFuture<Long> getBucketSnapshotLength(long id) {
            long length = snapshots.get(id).stream().mapToLong(entry -> entry.length).sum();
            return CompletableFuture.completedFuture(length);
        }

        @Override
        public CompletableFuture<Void> deleteBucketSnapshot(long id) {
            snapshots.remove(id);
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void start() {
        }

        @Override
        public void close() {
        }
    }
}
