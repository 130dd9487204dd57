package bookstand.interop.pulsar;

import static bookstand.interop.Lines.bytes;
import static bookstand.interop.Lines.hex;
import static bookstand.interop.Lines.text;

import bookstand.interop.Lines;
import com.google.common.collect.Range;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.util.IllegalReferenceCountException;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.ManagedCursorImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;
import org.apache.bookkeeper.mledger.proto.BatchedEntryDeletionIndexInfo;
import org.apache.bookkeeper.mledger.proto.KeyValue;
import org.apache.bookkeeper.mledger.proto.LongListMap;
import org.apache.bookkeeper.mledger.proto.LongProperty;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfoMetadata;
import org.apache.bookkeeper.mledger.proto.ManagedLedgerInfo;
import org.apache.bookkeeper.mledger.proto.ManagedLedgerInfo.LedgerInfo;
import org.apache.bookkeeper.mledger.proto.MessageRange;
import org.apache.bookkeeper.mledger.proto.NestedPositionInfo;
import org.apache.bookkeeper.mledger.proto.PositionInfo;
import org.apache.pulsar.common.api.proto.CompressionType;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.util.collections.OpenLongPairRangeSet;

/** Answers questions about the bytes of topics and cursors with the classes of Pulsar's managed ledger. */
public final class Cursors {

    private static final Map<String, Lines.Question> QUESTIONS = Map.of(
            "position_info", Cursors::positionInfo,
            "cursor_info", Cursors::cursorInfo,
            "ledger_info", Cursors::ledgerInfo,
            "recovered", Cursors::recovered);

    private Cursors() {
    }

    public static void main(String[] args) throws Exception {
        Lines.answer(args, QUESTIONS);
        // The original's threads are not asked to end: they would write what they hold.
        System.exit(0);
    }

    /** A snapshot out of a cursor's ledger: its fields, and what they come to in the original's set of ranges. */
    private static void positionInfo(Map<String, String> request, Map<String, String> answer) {
        PositionInfo info = new PositionInfo();
        info.parseFrom(bytes(request.get("bytes")));
        answer.put("mark_delete", info.getLedgerId() + ":" + info.getEntryId());
        answer.put("ranges", each(info.getIndividualDeletedMessagesList(), Cursors::range));
        answer.put("longs", each(info.getIndividualDeletedMessageRangesList(), Cursors::longs));
        answer.put("batches", each(info.getBatchedEntryDeletionIndexInfosList(), Cursors::batch));
        answer.put("properties", each(info.getPropertiesList(), Cursors::longProperty));
        if (request.containsKey("acked")) {
            answer.put("acked", acked(info));
        }
        answer.put("again", hex(info.toByteArray()));
    }

    private static String acked(PositionInfo info) {
        OpenLongPairRangeSet<Position> set = new OpenLongPairRangeSet<>(PositionFactory::create);
        Map<Long, long[]> words = new HashMap<>();
        for (LongListMap map : info.getIndividualDeletedMessageRangesList()) {
            words.put(map.getKey(), IntStream.range(0, map.getValuesCount()).mapToLong(map::getValueAt).toArray());
        }
        set.build(words);
        for (MessageRange range : info.getIndividualDeletedMessagesList()) {
            set.addOpenClosed(range.getLowerEndpoint().getLedgerId(), range.getLowerEndpoint().getEntryId(),
                    range.getUpperEndpoint().getLedgerId(), range.getUpperEndpoint().getEntryId());
        }
        return each(set.asRanges(), Cursors::range);
    }

    /**
     * A cursor's record. The original looks for the strings in a compressed one when it has released the bytes, and so
     * cannot read what it wrote itself; {@code whole} says whether it could. It is then unpacked here, by the original's
     * codec.
     */
    private static void cursorInfo(Map<String, String> request, Map<String, String> answer) throws Exception {
        byte[] record = bytes(request.get("bytes"));
        ManagedCursorInfo info = new MetaStoreImpl(null, null).parseManagedCursorInfo(record);
        try {
            describe(info, answer);
            answer.put("whole", "true");
        } catch (IllegalReferenceCountException e) {
            answer.put("whole", "false");
            describe(unpacked(Unpooled.wrappedBuffer(record)), answer);
        }
    }

    private static ManagedCursorInfo unpacked(ByteBuf record) throws Exception {
        record.skipBytes(Short.BYTES);
        byte[] header = new byte[record.readInt()];
        record.readBytes(header);
        ManagedCursorInfoMetadata metadata = new ManagedCursorInfoMetadata();
        metadata.parseFrom(header);
        CompressionType codec = CompressionType.valueOf(metadata.getCompressionType().name());
        ByteBuf plain = CompressionCodecProvider.getCompressionCodec(codec).decode(record, metadata.getUncompressedSize());
        ManagedCursorInfo info = new ManagedCursorInfo();
        info.parseFrom(ByteBufUtil.getBytes(plain));
        return info;
    }

    private static void describe(ManagedCursorInfo info, Map<String, String> answer) {
        answer.put("cursor_ledger", String.valueOf(info.getCursorsLedgerId()));
        answer.put("mark_delete", info.hasMarkDeleteLedgerId() || info.hasMarkDeleteEntryId()
                ? info.getMarkDeleteLedgerId() + ":" + info.getMarkDeleteEntryId() : "none");
        answer.put("ranges", each(info.getIndividualDeletedMessagesList(), Cursors::range));
        answer.put("batches", each(info.getBatchedEntryDeletionIndexInfosList(), Cursors::batch));
        answer.put("properties", each(info.getPropertiesList(), Cursors::longProperty));
        answer.put("last_active", info.hasLastActive() ? String.valueOf(info.getLastActive()) : "none");
        answer.put("cursor_properties",
                each(info.getCursorPropertiesList(), one -> text(one.getName()) + "=" + text(one.getValue())));
        answer.put("again", hex(info.toByteArray()));
    }

    private static void ledgerInfo(Map<String, String> request, Map<String, String> answer) throws Exception {
        ManagedLedgerInfo info = new MetaStoreImpl(null, null).parseManagedLedgerInfo(bytes(request.get("bytes")));
        answer.put("ledgers", each(info.getLedgerInfosList(), Cursors::ledger));
        answer.put("terminated", info.hasTerminatedPosition() ? position(info.getTerminatedPosition()) : "none");
        answer.put("properties", each(info.getPropertiesList(), Cursors::keyValue));
        answer.put("again", hex(info.toByteArray()));
    }

    /** A topic is opened by the original, and with it the cursor. */
    private static void recovered(Map<String, String> request, Map<String, String> answer) throws Exception {
        ManagedLedgerConfig config = new ManagedLedgerConfig();
        config.setDeletionAtBatchIndexLevelEnabled(true);
        config.setUnackedRangesOpenCacheSetEnabled(request.get("set").equals("open"));
        // Nothing is deleted.
        config.setRetentionTime(-1, TimeUnit.MINUTES);
        config.setRetentionSizeInMB(-1);
        ManagedLedger topic = Topics.open(request, config);
        ManagedCursorImpl cursor = null;
        for (ManagedCursor one : topic.getCursors()) {
            cursor = (ManagedCursorImpl) one;
        }
        // From the end of a ledger it goes on to the place before the next one.
        Position consumed = cursor.getMarkDeletedPosition();
        Position before = ((ManagedLedgerImpl) topic).getPreviousPosition(consumed.getNext());
        answer.put("mark_delete", position(consumed.getEntryId() < 0 ? before : consumed));
        answer.put("acked", each(cursor.getIndividuallyDeletedMessagesSet().asRanges(), Cursors::range));
        Map<Position, BitSet> batches = new TreeMap<>(cursor.getBatchDeletedIndexes());
        answer.put("batches", each(batches.entrySet(),
                one -> position(one.getKey()) + "/" + words(LongStream.of(one.getValue().toLongArray()))));
        answer.put("properties", each(new TreeMap<>(cursor.getProperties()).entrySet(),
                one -> text(one.getKey()) + "=" + one.getValue()));
        answer.put("cursor_properties", each(new TreeMap<>(cursor.getCursorProperties()).entrySet(),
                one -> text(one.getKey()) + "=" + text(one.getValue())));
        answer.put("backlog", String.valueOf(cursor.getNumberOfEntriesInBacklog(true)));
        answer.put("last_confirmed", position(topic.getLastConfirmedEntry()));
    }

    // -- words for what there is -----------------------------------------------------------------------------------

    private static <T> String each(Iterable<T> many, Function<T, String> word) {
        StringBuilder words = new StringBuilder();
        for (T one : many) {
            words.append(words.length() == 0 ? "" : ",").append(word.apply(one));
        }
        return words.toString();
    }

    private static String position(Position position) {
        return position.getLedgerId() + ":" + position.getEntryId();
    }

    private static String position(NestedPositionInfo position) {
        return position.getLedgerId() + ":" + position.getEntryId();
    }

    private static String range(Range<Position> range) {
        return position(range.lowerEndpoint()) + "~" + position(range.upperEndpoint());
    }

    private static String range(MessageRange range) {
        return position(range.getLowerEndpoint()) + "~" + position(range.getUpperEndpoint());
    }

    private static String longs(LongListMap map) {
        return map.getKey() + "/" + words(IntStream.range(0, map.getValuesCount()).mapToLong(map::getValueAt));
    }

    private static String batch(BatchedEntryDeletionIndexInfo batch) {
        return position(batch.getPosition()) + "/"
                + words(IntStream.range(0, batch.getDeleteSetsCount()).mapToLong(batch::getDeleteSetAt));
    }

    private static String words(LongStream words) {
        return words.mapToObj(Long::toHexString).collect(Collectors.joining("."));
    }

    private static String longProperty(LongProperty property) {
        return text(property.getName()) + "=" + property.getValue();
    }

    private static String keyValue(KeyValue property) {
        return text(property.getKey()) + "=" + text(property.getValue());
    }

    private static String ledger(LedgerInfo info) {
        return String.join("/", List.of(
                String.valueOf(info.getLedgerId()),
                info.hasEntries() ? String.valueOf(info.getEntries()) : "none",
                info.hasSize() ? String.valueOf(info.getSize()) : "none",
                info.hasTimestamp() ? String.valueOf(info.getTimestamp()) : "none",
                info.hasOffloadContext() ? hex(info.getOffloadContext().toByteArray()) : "none",
                info.getPropertiesList().stream().map(Cursors::keyValue).collect(Collectors.joining(";"))));
    }
}
