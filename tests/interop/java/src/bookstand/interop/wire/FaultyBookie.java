package bookstand.interop.wire;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.bookie.BookieException;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.BookieResources;
import org.apache.bookkeeper.bookie.LedgerDirsManager;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.WriteCallback;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.DiskChecker;

/** A bookie of the original that holds adds and fails as rules say, in the words of a served store's rules. */
final class FaultyBookie extends BookieImpl {

    /** What is to go wrong, with what of which ledger, where, and how often. */
    static final class Rule {
        private static final Pattern FORM = Pattern.compile(
                "(stall\\+after|stall|fail|flip)@(append|read|read_lac|fence)\\((\\d+)(?::(\\d+))?\\)(?:@bookie(\\d+))?"
                        + "(?:\\*(inf|\\d+))?(?:=(-?\\d+))?");

        final String kind;
        final String operation;
        final long ledger;
        final long entry;
        final int bookie;
        final int code;
        private final int most;
        private int happened;
        private final List<Runnable> held = new ArrayList<>();
        private boolean over;

        Rule(String text) {
            Matcher parts = FORM.matcher(text);
            if (!parts.matches()) {
                throw new IllegalArgumentException("rule " + text);
            }
            kind = parts.group(1);
            operation = parts.group(2);
            ledger = Long.parseLong(parts.group(3));
            entry = parts.group(4) == null ? -1 : Long.parseLong(parts.group(4));
            bookie = parts.group(5) == null ? 0 : Integer.parseInt(parts.group(5));
            String times = parts.group(6);
            most = times == null || times.equals("inf") ? Integer.MAX_VALUE : Integer.parseInt(times);
            code = parts.group(7) == null ? 0 : Integer.parseInt(parts.group(7));
        }

        private synchronized boolean applies(String what, long toLedger, long toEntry, int at) {
            boolean so = !over && operation.equals(what) && ledger == toLedger && (entry < 0 || entry == toEntry)
                    && (bookie == 0 || bookie == at) && happened < most;
            happened += so ? 1 : 0;
            return so;
        }

        private void hold(Runnable rest) {
            boolean atOnce;
            synchronized (this) {
                atOnce = over;
                if (!atOnce) {
                    held.add(rest);
                }
            }
            if (atOnce) {
                rest.run();
            }
        }

        synchronized int happened() {
            return happened;
        }

        void end() {
            List<Runnable> rest;
            synchronized (this) {
                over = true;
                rest = new ArrayList<>(held);
                held.clear();
            }
            rest.forEach(Runnable::run);
        }
    }

    private final int number;
    private final CopyOnWriteArrayList<Rule> rules;

    private FaultyBookie(ServerConfiguration conf, RegistrationManager registration, LedgerStorage storage,
            DiskChecker disk, LedgerDirsManager ledgers, LedgerDirsManager indexes, int number,
            CopyOnWriteArrayList<Rule> rules) throws Exception {
        super(conf, registration, storage, disk, ledgers, indexes, NullStatsLogger.INSTANCE,
                BookieResources.createAllocator(conf), BookieServiceInfo.NO_INFO);
        this.number = number;
        this.rules = rules;
    }

    static FaultyBookie over(Originals.Parts parts, int number, CopyOnWriteArrayList<Rule> rules) throws Exception {
        return new FaultyBookie(parts.conf(), parts.registration(), parts.storage(), parts.disk(), parts.ledgers(),
                parts.indexes(), number, rules);
    }

    private Rule rule(String kind, String operation, long ledger, long entry) {
        for (Rule rule : rules) {
            if (rule.kind.equals(kind) && rule.applies(operation, ledger, entry, number)) {
                return rule;
            }
        }
        return null;
    }

    @Override
    public void addEntry(ByteBuf entry, boolean ackBeforeSync, WriteCallback answer, Object context, byte[] masterKey)
            throws IOException, BookieException, InterruptedException {
        long ledger = entry.getLong(entry.readerIndex());
        long id = entry.getLong(entry.readerIndex() + Long.BYTES);
        if (rule("fail", "append", ledger, id) != null) {
            entry.release();
            throw new IOException("append is to fail");
        }
        Rule before = rule("stall", "append", ledger, id);
        if (before != null) {
            before.hold(() -> {
                try {
                    super.addEntry(entry, ackBeforeSync, answer, context, masterKey);
                } catch (BookieException.LedgerFencedException e) {
                    answer.writeComplete(BookieProtocol.EFENCED, ledger, id, null, context);
                } catch (Exception e) {
                    answer.writeComplete(BookieProtocol.EIO, ledger, id, null, context);
                }
            });
            return;
        }
        Rule after = rule("stall+after", "append", ledger, id);
        WriteCallback held = after == null ? answer : (code, ofLedger, ofEntry, address, given) ->
                after.hold(() -> answer.writeComplete(code, ofLedger, ofEntry, address, given));
        super.addEntry(entry, ackBeforeSync, held, context, masterKey);
    }

    @Override
    public CompletableFuture<Boolean> fenceLedger(long ledger, byte[] masterKey) throws IOException, BookieException {
        if (rule("fail", "fence", ledger, -1) != null) {
            throw new IOException("fence is to fail");
        }
        return super.fenceLedger(ledger, masterKey);
    }

    @Override
    public ByteBuf readEntry(long ledger, long entry) throws IOException, NoLedgerException, BookieException {
        Rule failing = rule("fail", "read", ledger, entry);
        if (failing != null) {
            switch (failing.code) {
                case -13 -> throw new Bookie.NoEntryException(ledger, entry);
                case -7 -> throw new NoLedgerException(ledger);
                case -108 -> throw new BookieException.DataUnknownException();
                default -> throw new IOException("read is to fail");
            }
        }
        ByteBuf read = super.readEntry(ledger, entry);
        if (rule("flip", "read", ledger, entry) != null) {
            ByteBuf flipped = Unpooled.copiedBuffer(read);
            int last = flipped.writerIndex() - 1;
            flipped.setByte(last, flipped.getByte(last) ^ 1);
            read.release();
            return flipped;
        }
        return read;
    }
}
