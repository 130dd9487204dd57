package bookstand.interop.delayed;

import static bookstand.interop.Lines.bytes;
import static bookstand.interop.Lines.hex;
import static bookstand.interop.Lines.text;

import bookstand.interop.Json;
import bookstand.interop.Lines;
import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.mledger.impl.LedgerMetadataUtils;
import org.apache.pulsar.broker.delayed.bucket.BucketDelayedDeliveryTracker;
import org.apache.pulsar.broker.delayed.proto.DelayedIndex;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegmentMetadata;
import org.roaringbitmap.PeekableIntIterator;
import org.roaringbitmap.RoaringBitmap;

/** Answers questions about buckets of delayed messages with the classes of Pulsar's broker. */
public final class Buckets {

    private static final Map<String, Lines.Question> QUESTIONS = Map.of(
            "metadata", Buckets::metadata,
            "segment", Buckets::segment,
            "labels", Buckets::labels,
            "sealed", Buckets::sealed,
            "recovered", Buckets::recovered,
            "tracker", Buckets::tracker);

    private Buckets() {
    }

    public static void main(String[] args) throws Exception {
        Lines.answer(args, QUESTIONS);
        System.exit(0);
    }

    /** Entry 0: of each segment its last and first time, and by ledger what the bitmap has, told as ranges. */
    private static void metadata(Map<String, String> request, Map<String, String> answer) throws Exception {
        SnapshotMetadata metadata = new SnapshotMetadata();
        metadata.parseFrom(bytes(request.get("bytes")));
        List<String> segments = new ArrayList<>();
        for (SnapshotSegmentMetadata segment : metadata.getMetadataListList()) {
            Map<Long, byte[]> bitmaps = new TreeMap<>();
            segment.forEachDelayedIndexBitMap(bitmaps::put);
            List<String> words = new ArrayList<>();
            words.add(segment.getMaxScheduleTimestamp() + "~" + segment.getMinScheduleTimestamp());
            for (Map.Entry<Long, byte[]> one : bitmaps.entrySet()) {
                RoaringBitmap bitmap = new RoaringBitmap();
                bitmap.deserialize(ByteBuffer.wrap(one.getValue()));
                words.add(one.getKey() + ":" + ranges(bitmap));
            }
            segments.add(String.join("/", words));
        }
        answer.put("segments", String.join(";", segments));
        answer.put("again", hex(metadata.toByteArray()));
    }

    private static String ranges(RoaringBitmap bitmap) {
        List<String> words = new ArrayList<>();
        PeekableIntIterator ids = bitmap.getIntIterator();
        long first = -1;
        long last = -1;
        while (ids.hasNext()) {
            long id = Integer.toUnsignedLong(ids.next());
            if (first < 0) {
                first = id;
            } else if (id != last + 1) {
                words.add(first + "-" + last);
                first = id;
            }
            last = id;
        }
        if (first >= 0) {
            words.add(first + "-" + last);
        }
        return String.join(",", words);
    }

    /** Any other entry: its indexes. */
    private static void segment(Map<String, String> request, Map<String, String> answer) throws Exception {
        SnapshotSegment segment = new SnapshotSegment();
        segment.parseFrom(bytes(request.get("bytes")));
        answer.put("indexes", each(segment.getIndexesList(), Buckets::index));
        answer.put("again", hex(segment.toByteArray()));
    }

    /** The metadata of a snapshot's ledger: what it has of its own, and what the original would give it. */
    private static void labels(Map<String, String> request, Map<String, String> answer) throws Exception {
        LedgerMetadata metadata = new LedgerMetadataSerDe().parseConfig(
                bytes(request.get("bytes")), Long.parseLong(request.get("ledger")), Optional.empty());
        answer.put("custom", custom(metadata.getCustomMetadata()));
        answer.put("state", metadata.getState().toString());
        answer.put("last_entry", String.valueOf(metadata.getLastEntryId()));
        answer.put("length", String.valueOf(metadata.getLength()));
        answer.put("written", custom(LedgerMetadataUtils.buildMetadataForDelayedIndexBucket(
                request.get("key"), string(request.get("topic")), string(request.get("cursor")))));
    }

    private static String string(String hex) {
        return new String(bytes(hex), StandardCharsets.UTF_8);
    }

    private static String custom(Map<String, byte[]> custom) {
        return new TreeMap<>(custom).entrySet().stream()
                .map(one -> text(one.getKey()) + "=" + hex(one.getValue())).collect(Collectors.joining(","));
    }

    /** What the original's tracker stores when it is given these messages, and then one of a newer ledger. */
    private static void sealed(Map<String, String> request, Map<String, String> answer) throws Exception {
        String[] rows = request.get("rows").split(",");
        Broker broker = new Broker();
        Broker.Figures figures = new Broker.Figures(
                rows.length, Long.parseLong(request.get("step")), Integer.parseInt(request.get("most")));
        BucketDelayedDeliveryTracker tracker = broker.tracker(figures);
        long last = 0;
        for (String row : rows) {
            String[] numbers = row.split(":");
            last = Long.parseLong(numbers[1]);
            if (!tracker.addMessage(last, Long.parseLong(numbers[2]), Long.parseLong(numbers[0]))) {
                throw new IllegalStateException("not taken: " + row);
            }
        }
        tracker.addMessage(last + 1, 0, Long.MAX_VALUE);
        answer.put("key", each(broker.properties.keySet(), one -> one));
        answer.put("entries", each(broker.created, Lines::hex));
        tracker.close();
    }

    /** What the original's tracker makes of a cursor's snapshots, and when it delivers what. */
    private static void recovered(Map<String, String> request, Map<String, String> answer) throws Exception {
        Broker broker = new Broker();
        broker.now = Long.parseLong(request.get("now"));
        for (String bucket : request.get("buckets").split(";")) {
            String[] words = bucket.split("=");
            broker.put(words[0], Long.parseLong(words[1]), words[2].split(","));
        }
        BucketDelayedDeliveryTracker tracker = broker.tracker(new Broker.Figures(Long.MAX_VALUE, 1, -1));
        answer.put("count", String.valueOf(tracker.getNumberOfDelayedMessages()));
        StringBuilder contained = new StringBuilder();
        for (String position : request.get("ask").split(",")) {
            String[] numbers = position.split(":");
            boolean there = tracker.containsMessage(Long.parseLong(numbers[0]), Long.parseLong(numbers[1]));
            contained.append(there ? '1' : '0');
        }
        answer.put("contained", contained.toString());
        List<String> delivered = new ArrayList<>();
        for (String time : request.get("times").split(",")) {
            broker.now = Long.parseLong(time);
            delivered.add(each(broker.delivered(tracker), one -> one.getLedgerId() + ":" + one.getEntryId()));
        }
        answer.put("delivered", String.join(";", delivered));
        answer.put("left", String.valueOf(tracker.getNumberOfDelayedMessages()));
        tracker.close();
    }

    /** A scenario of a tracker, as it is recorded. */
    private static void tracker(Map<String, String> request, Map<String, String> answer) throws Exception {
        List<JsonNode> recorded = Tracker.record(Json.read(string(request.get("scenario"))));
        answer.put("ops", text(Json.of(recorded).toString()));
    }

    private static String index(DelayedIndex index) {
        return index.getTimestamp() + ":" + index.getLedgerId() + ":" + index.getEntryId();
    }

    private static <T> String each(Iterable<T> many, Function<T, String> word) {
        StringBuilder words = new StringBuilder();
        for (T one : many) {
            words.append(words.length() == 0 ? "" : ",").append(word.apply(one));
        }
        return words.toString();
    }
}
