package bookstand.interop.disk;

import bookstand.interop.Lines;
import bookstand.interop.topic.TopicRecorder;
import io.netty.buffer.ByteBuf;
import java.io.File;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.bookkeeper.bookie.Bookie.NoLedgerException;
import org.apache.bookkeeper.bookie.DefaultEntryLogger;
import org.apache.bookkeeper.bookie.EntryLogMetadata;
import org.apache.bookkeeper.bookie.ReadOnlyDefaultEntryLogger;
import org.apache.bookkeeper.bookie.storage.EntryLogScanner;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.ManagedCursorImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;

/**
 * Reads exported disks: their entry logs with the original's entry logger, and all of it through a bookie of the
 * original's that is started on them, its client, and Pulsar's managed ledgers.
 */
public final class Bookies {

    private static final long PATIENCE = 60;
    private static final int AT_ONCE = 500;

    private static final Map<String, Lines.Question> QUESTIONS = Map.of(
            "log", Bookies::log,
            "start", Bookies::start,
            "ledger", Bookies::ledger,
            "topic", Bookies::topic,
            "cursor", Bookies::cursor,
            "record", TopicRecorder::record,
            "stop", Bookies::stop);

    private static Cluster cluster;

    private Bookies() {
    }

    public static void main(String[] args) throws Exception {
        Lines.answer(args, QUESTIONS);
        // The original's threads are not asked to end.
        System.exit(0);
    }

    // -- files -----------------------------------------------------------------------------------------------------

    /** Every entry that the original's scanner finds in a log, and what the log's map says of its ledgers. */
    private static void log(Map<String, String> request, Map<String, String> answer) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setLedgerDirNames(new String[] {request.get("ledgers")});
        long id = Long.parseLong(request.get("log"), 16);
        ReadOnlyDefaultEntryLogger logger = new ReadOnlyDefaultEntryLogger(conf);
        Sum sum = new Sum();
        logger.scanEntryLog(id, new EntryLogScanner() {
            @Override
            public boolean accept(long ledger) {
                return true;
            }

            @Override
            public void process(long ledger, long offset, ByteBuf entry) {
                byte[] data = new byte[entry.readableBytes()];
                entry.getBytes(entry.readerIndex(), data);
                sum.add(entry.getLong(entry.readerIndex()), entry.getLong(entry.readerIndex() + 8), data);
            }
        });
        answer.put("entries", sum.toString());
        Method index = DefaultEntryLogger.class.getDeclaredMethod("extractEntryLogMetadataFromIndex", long.class);
        index.setAccessible(true);
        answer.put("map", described((EntryLogMetadata) index.invoke(logger, id)));
    }

    private static String described(EntryLogMetadata metadata) {
        Map<Long, Long> ledgers = new TreeMap<>();
        metadata.getLedgersMap().forEach(ledgers::put);
        return ledgers.entrySet().stream().map(e -> e.getKey() + ":" + e.getValue()).collect(Collectors.joining(","));
    }

    // -- a bookie --------------------------------------------------------------------------------------------------

    private static void start(Map<String, String> request, Map<String, String> answer) throws Exception {
        cluster = new Cluster(new File(request.get("folder")), request.get("bookie"), new File(request.get("scratch")));
        answer.put("started", "true");
    }

    private static void stop(Map<String, String> request, Map<String, String> answer) throws Exception {
        cluster.close();
        cluster = null;
        answer.put("stopped", "true");
    }

    /**
     * What the bookie knows of a ledger; its metadata and entries, as a client reads them; then where recovery says that
     * it ends.
     */
    private static void ledger(Map<String, String> request, Map<String, String> answer) throws Exception {
        long id = Long.parseLong(request.get("ledger"));
        try {
            answer.put("fenced", String.valueOf(cluster.storage().isFenced(id)));
            answer.put("master_key", Lines.hex(cluster.storage().readMasterKey(id)));
        } catch (NoLedgerException e) {
            answer.put("fenced", "unknown");
            answer.put("master_key", "unknown");
        }
        BookKeeper client = cluster.client;
        LedgerMetadata metadata = client.getLedgerManager().readLedgerMetadata(id)
                .get(PATIENCE, TimeUnit.SECONDS).getValue();
        answer.put("state", metadata.getState().name());
        answer.put("ensembles", metadata.getAllEnsembles().toString());
        answer.put("quorums", metadata.getEnsembleSize() + "/" + metadata.getWriteQuorumSize() + "/"
                + metadata.getAckQuorumSize());
        Map<String, byte[]> custom = new TreeMap<>(metadata.getCustomMetadata());
        answer.put("custom", custom.entrySet().stream()
                .map(e -> Lines.hex(e.getKey().getBytes(StandardCharsets.UTF_8)) + ":" + Lines.hex(e.getValue()))
                .collect(Collectors.joining(",")));
        BookKeeper.DigestType digest = BookKeeper.DigestType.valueOf(request.get("digest"));
        byte[] password = Lines.bytes(request.get("password"));
        try (LedgerHandle handle = client.openLedgerNoRecovery(id, digest, password)) {
            answer.put("lac", String.valueOf(handle.getLastAddConfirmed()));
            answer.put("length", String.valueOf(handle.getLength()));
            Sum sum = new Sum();
            long last = Long.parseLong(request.get("last"));
            for (long first = 0; first <= last; first += AT_ONCE) {
                Enumeration<LedgerEntry> entries =
                        handle.readUnconfirmedEntries(first, Math.min(last, first + AT_ONCE - 1));
                while (entries.hasMoreElements()) {
                    LedgerEntry entry = entries.nextElement();
                    sum.add(id, entry.getEntryId(), entry.getEntry());
                }
            }
            answer.put("entries", sum.toString());
        }
        if (request.containsKey("recover")) {
            try (LedgerHandle handle = client.openLedger(id, digest, password)) {
                answer.put("recovered", handle.getLastAddConfirmed() + ":" + handle.getLength());
            }
        }
    }

    // -- topics ----------------------------------------------------------------------------------------------------

    private static ManagedLedger open(String name) throws Exception {
        ManagedLedgerConfig config = new ManagedLedgerConfig();
        config.setEnsembleSize(1).setWriteQuorumSize(1).setAckQuorumSize(1);
        config.setDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C);
        config.setPassword("");
        config.setDeletionAtBatchIndexLevelEnabled(true);
        return cluster.topics().open(name, config);
    }

    /** All entries of a topic, and the names of its cursors. */
    private static void topic(Map<String, String> request, Map<String, String> answer) throws Exception {
        ManagedLedger topic = open(request.get("name"));
        Sum sum = new Sum();
        ManagedCursor reader = topic.newNonDurableCursor(PositionFactory.EARLIEST);
        while (reader.hasMoreEntries()) {
            for (Entry entry : reader.readEntries(AT_ONCE)) {
                sum.add(entry.getLedgerId(), entry.getEntryId(), entry.getData());
                entry.release();
            }
        }
        answer.put("entries", sum.toString());
        if (topic.isTerminated()) {
            answer.put("terminated", topic.getLastConfirmedEntry().toString());
            answer.put("next", "none");
        } else {
            // What comes next goes into a ledger behind all others.
            Position next = topic.addEntry(new byte[] {1});
            answer.put("terminated", "none");
            answer.put("next", next.getLedgerId() == topic.getLedgersInfo().lastKey() ? "last" : next.toString());
        }
        List<String> names = new ArrayList<>();
        for (ManagedCursor cursor : topic.getCursors()) {
            if (cursor.isDurable()) {
                names.add(Lines.hex(cursor.getName().getBytes(StandardCharsets.UTF_8)));
            }
        }
        names.sort(null);
        answer.put("cursors", String.join(",", names));
    }

    /** What a cursor has acknowledged, once the original has recovered it. */
    private static void cursor(Map<String, String> request, Map<String, String> answer) throws Exception {
        ManagedLedger topic = open(request.get("topic"));
        String name = new String(Lines.bytes(request.get("name")), StandardCharsets.UTF_8);
        for (ManagedCursor one : topic.getCursors()) {
            if (one.getName().equals(name)) {
                ManagedCursorImpl cursor = (ManagedCursorImpl) one;
                answer.put("backlog", String.valueOf(cursor.getNumberOfEntriesInBacklog(true)));
                answer.put("ranges", cursor.getIndividuallyDeletedMessagesSet().asRanges().stream()
                        .map(range -> range.lowerEndpoint() + ".." + range.upperEndpoint())
                        .collect(Collectors.joining(",")));
                List<String> sets = new ArrayList<>();
                for (String at : request.get("batches").split(",")) {
                    if (!at.isEmpty()) {
                        String[] parts = at.split(":");
                        Position position =
                                PositionFactory.create(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
                        long[] words = cursor.getDeletedBatchIndexesAsLongArray(position);
                        sets.add(at + "=" + (words == null ? "none" : new java.math.BigInteger(
                                1, bigEndian(words)).toString(16)));
                    }
                }
                answer.put("sets", String.join(",", sets));
                answer.put("properties", new TreeMap<>(cursor.getProperties()).toString());
                answer.put("cursor_properties", new TreeMap<>(cursor.getCursorProperties()).toString());
            }
        }
    }

    private static byte[] bigEndian(long[] words) {
        ByteBuffer out = ByteBuffer.allocate(8 * words.length);
        for (int i = words.length - 1; i >= 0; i--) {
            out.putLong(words[i]);
        }
        return out.array();
    }

    /** How many entries, and a digest over their ids, sizes and bytes. */
    private static final class Sum {

        private final MessageDigest digest;
        private long count;

        Sum() throws Exception {
            digest = MessageDigest.getInstance("SHA-256");
        }

        void add(long ledger, long entry, byte[] data) {
            digest.update(ByteBuffer.allocate(24).putLong(ledger).putLong(entry).putLong(data.length).array());
            digest.update(data);
            count++;
        }

        @Override
        public String toString() {
            return count + ":" + HexFormat.of().formatHex(digest.digest());
        }
    }
}
