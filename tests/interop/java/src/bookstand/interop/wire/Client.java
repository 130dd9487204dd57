package bookstand.interop.wire;

import bookstand.interop.Lines;
import bookstand.interop.Served;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/** The original's client on a served store: named steps, one after the other, each with what came of it. */
final class Client {

    /** What comes of one step; nothing is 0. */
    private interface Step {
        Object run() throws Exception;
    }

    private static final byte[] PASSWORD = {'p', 'w'};
    private static final int PATIENCE_MILLIS = 60_000;
    // The original never answers some calls; that is told as a TimeoutException.
    private static final int HANGING_SECONDS = 3;

    private final Map<String, Step> steps = new LinkedHashMap<>();
    private final Served served;
    private final boolean v2;
    private BookKeeper first;
    private BookKeeper second;
    private LedgerHandle writer;
    private LedgerHandle reader;
    private LedgerHandle last;
    private long closed;

    Client(Served served, boolean v2) {
        this.served = served;
        this.v2 = v2;
        lives();
        reads();
        ends();
        kinds();
        asks();
        stripes();
    }

    /** Threads of clients that are open would keep the program from ending. */
    void leave() throws Exception {
        for (BookKeeper client : new BookKeeper[] {first, second}) {
            if (client != null) {
                client.close();
            }
        }
        first = second = null;
    }

    String run(String name) {
        try {
            Object result = steps.get(name).run();
            return result == null ? "0" : result.toString();
        } catch (Exception e) {
            return told(e);
        }
    }

    private static String told(Throwable e) {
        Throwable cause = e;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String code = cause instanceof BKException ? " rc " + ((BKException) cause).getCode() : "";
        return "! " + cause.getClass().getSimpleName() + " " + cause.getMessage() + code;
    }

    private BookKeeper connect(int explicitLacMillis) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(served.uri());
        conf.setZkTimeout(PATIENCE_MILLIS);
        conf.setUseV2WireProtocol(v2);
        conf.setExplictLacInterval(explicitLacMillis);
        return BookKeeper.forConfig(conf).build();
    }

    private static byte[] payload(int number) {
        return ("entry-" + number).getBytes();
    }

    private static int count(Enumeration<LedgerEntry> entries) {
        int count = 0;
        while (entries.hasMoreElements()) {
            entries.nextElement().getEntry();
            count++;
        }
        return count;
    }

    private void lives() {
        steps.put("connect", () -> {
            first = connect(0);
            return null;
        });
        steps.put("connect second client", () -> {
            second = connect(0);
            return null;
        });
        steps.put("close clients", () -> {
            leave();
            return null;
        });
        steps.put("after a cut connection to ZooKeeper: create, add, close", () -> {
            if (served.cutSessions() == 0) {
                throw new IllegalStateException("no connection was cut");
            }
            LedgerHandle ledger = first.createLedger(1, 1, 1, DigestType.CRC32C, PASSWORD);
            ledger.addEntry(payload(0));
            ledger.close();
            return ledger.getId();
        });
        steps.put("explicit LAC client: create, add, wait 700 ms, close", () -> {
            BookKeeper client = connect(200);
            LedgerHandle ledger = client.createLedger(1, 1, 1, DigestType.CRC32C, PASSWORD);
            ledger.addEntry(payload(0));
            LedgerHandle other = second.openLedgerNoRecovery(ledger.getId(), DigestType.CRC32C, PASSWORD);
            // Without it no reader could know of the last entry.
            long until = System.currentTimeMillis() + PATIENCE_MILLIS;
            while (!v2 && other.readExplicitLastConfirmed() < 0 && System.currentTimeMillis() < until) {
                Thread.sleep(50);
            }
            long lac = v2 ? -1 : other.readExplicitLastConfirmed();
            other.close();
            ledger.close();
            client.close();
            if (v2) {
                // It has no request for an explicit LAC: what is left of the ledger tells.
                LedgerHandle closed = second.openLedger(ledger.getId(), DigestType.CRC32C, PASSWORD);
                lac = closed.getLastAddConfirmed();
                closed.close();
            }
            return lac;
        });
    }

    private void reads() {
        steps.put("create E1 CRC32C", () -> {
            writer = first.createLedger(1, 1, 1, DigestType.CRC32C, PASSWORD);
            return writer.getId();
        });
        steps.put("append x5", () -> {
            long entry = -1;
            for (int i = 0; i < 5; i++) {
                entry = writer.addEntry(payload(i));
            }
            return entry;
        });
        steps.put("read 0..4", () -> count(writer.readEntries(0, 4)));
        steps.put("readUnconfirmed 5..5", () -> count(writer.readUnconfirmedEntries(5, 5)));
        steps.put("batchRead 0 count 10 size 1e6", () -> {
            int count = 0;
            // Whatever the step is called: the frame that was recorded asks for four, and the client asks for what it
            // is told to.
            try (LedgerEntries entries =
                    writer.batchReadAsync(0, 4, 1_000_000).get(HANGING_SECONDS, TimeUnit.SECONDS)) {
                for (Object entry : entries) {
                    count++;
                }
            }
            return count;
        });
        steps.put("openNoRecovery", () -> {
            reader = second.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, PASSWORD);
            return reader.getLastAddConfirmed();
        });
        steps.put("tryReadLastConfirmed", () -> reader.tryReadLastConfirmed());
        steps.put("readLastConfirmed", () -> reader.readLastConfirmed());
        steps.put("readExplicitLastConfirmed", () -> reader.readExplicitLastConfirmed());
        steps.put("longPoll LAC+entry (timeout 2 s, add after 300 ms)", () -> {
            CompletableFuture<String> told = poll(reader.getLastAddConfirmed() + 1, 2_000);
            Thread.sleep(300);
            writer.addEntry(payload(5));
            String result = told.get();
            writer.addEntry(payload(6));
            return result;
        });
        steps.put("longPoll that times out (500 ms)", () -> poll(99, 500).get());
    }

    private CompletableFuture<String> poll(long entryId, long timeoutMillis) {
        CompletableFuture<String> told = new CompletableFuture<>();
        reader.asyncReadLastConfirmedAndEntry(entryId, timeoutMillis, false, (code, lac, entry, context) ->
                told.complete("rc " + code + " lac " + lac + " entry " + (entry == null ? null : entry.getEntryId())),
                null);
        return told;
    }

    private void ends() {
        steps.put("recovery open with fencing", () -> {
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, PASSWORD);
            return recovered.getLastAddConfirmed();
        });
        steps.put("append on fenced", () -> writer.addEntry(payload(7)));
        steps.put("delete", () -> {
            first.deleteLedger(writer.getId());
            return null;
        });
        steps.put("read after delete", () -> reader.readEntries(0, 0).hasMoreElements());
        steps.put("open missing ledger", () -> first.openLedger(9_999, DigestType.CRC32C, PASSWORD));
        steps.put("open with wrong password",
                () -> first.openLedger(closed, DigestType.CRC32C, "other".getBytes()));
    }

    private void kinds() {
        steps.put("deferred-sync ledger: add x2, force", () -> {
            WriteHandle ledger = first.newCreateLedgerOp().withEnsembleSize(1).withWriteQuorumSize(1)
                    .withAckQuorumSize(1).withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C)
                    .withPassword(PASSWORD).withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get();
            try {
                ledger.append(payload(0));
                ledger.append(payload(1));
                long before = ledger.getLastAddConfirmed();
                ledger.force().get();
                return before + " -> " + ledger.getLastAddConfirmed();
            } finally {
                ledger.close();
            }
        });
        steps.put("adv ledger: add 1,0", () -> {
            LedgerHandle ledger = first.createLedgerAdv(1, 1, 1, DigestType.CRC32C, PASSWORD);
            CompletableFuture<Long> later = new CompletableFuture<>();
            ((LedgerHandleAdv) ledger).asyncAddEntry(1, payload(1),
                    (code, handle, entryId, context) -> later.complete(entryId), null);
            ledger.addEntry(0, payload(0));
            long entry = later.get();
            ledger.close();
            return entry;
        });
        for (DigestType digest : new DigestType[] {DigestType.CRC32, DigestType.MAC, DigestType.DUMMY}) {
            steps.put("digest " + digest + ": create, add, close, open, read", () -> {
                LedgerHandle ledger = first.createLedger(1, 1, 1, digest, PASSWORD);
                ledger.addEntry("abc".getBytes());
                ledger.close();
                closed = ledger.getId();
                LedgerHandle opened = first.openLedger(closed, digest, PASSWORD);
                return new String(opened.readEntries(0, 0).nextElement().getEntry());
            });
        }
        steps.put("entry of 1 MB", () -> {
            last = first.createLedger(1, 1, 1, DigestType.CRC32C, PASSWORD);
            last.addEntry("abc".getBytes());
            return last.addEntry(new byte[1 << 20]);
        });
        steps.put("oversized entry 5.5 MB", () -> last.addEntry(new byte[5_500_000]));
        steps.put("append after that", () -> last.addEntry(payload(2)));
    }

    private void asks() {
        steps.put("getBookieInfo", () -> first.getBookieInfo().size());
        steps.put("isClosed", () -> first.isClosed(last.getId()));
        steps.put("list of entries of a ledger (admin)", () -> {
            try (BookKeeperAdmin admin = new BookKeeperAdmin(first)) {
                BookieId bookie = last.getLedgerMetadata().getEnsembleAt(0).get(0);
                return admin.asyncGetListOfEntriesOfLedger(bookie, last.getId()).get()
                        .getTotalNumOfAvailableEntries();
            }
        });
        steps.put("list ledgers (admin)", () -> {
            List<Long> ids = new ArrayList<>();
            try (BookKeeperAdmin admin = new BookKeeperAdmin(first)) {
                admin.listLedgers().forEach(ids::add);
            }
            return ids.size();
        });
    }

    /** A ledger over three bookies. */
    private void stripes() {
        steps.put("E3 W2 A2: create, append x20", () -> {
            writer = first.createLedger(3, 2, 2, DigestType.CRC32C, PASSWORD);
            long entry = -1;
            for (int i = 0; i < 20; i++) {
                entry = writer.addEntry(payload(i));
            }
            return entry;
        });
        steps.put("E3 W2 A2: ensemble", () -> writer.getLedgerMetadata().getEnsembleAt(0).stream().distinct().count());
        steps.put("E3 W2 A2: recovery", () -> {
            LedgerHandle recovered = second.openLedger(writer.getId(), DigestType.CRC32C, PASSWORD);
            return recovered.getLastAddConfirmed() + " " + count(recovered.readEntries(0, 19)) + " "
                    + recovered.isClosed();
        });
        steps.put("E3 W2 A2: append on fenced", () -> writer.addEntry(payload(20)));
        steps.put("E3 W3 A2: append, close, open", () -> {
            LedgerHandle ledger = first.createLedger(3, 3, 2, DigestType.CRC32C, PASSWORD);
            ledger.addEntry(payload(0));
            ledger.addEntry(payload(1));
            ledger.close();
            LedgerHandle opened = second.openLedgerNoRecovery(ledger.getId(), DigestType.CRC32C, PASSWORD);
            return opened.getLastAddConfirmed() + " " + opened.getLength();
        });
        steps.put("E4: create", () -> first.createLedger(4, 2, 2, DigestType.CRC32C, PASSWORD));
    }
}
