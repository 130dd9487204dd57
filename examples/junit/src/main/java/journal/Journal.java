package journal;

import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;

/** The code under test, which uses only BookKeeper's client. */
final class Journal {

    private static final byte[] PASSWORD = {};

    private final LedgerHandle ledger;

    Journal(BookKeeper client) throws BKException, InterruptedException {
        ledger = client.createLedger(1, 1, 1, DigestType.CRC32C, PASSWORD);
    }

    long id() {
        return ledger.getId();
    }

    /** Appends a line, which is durable when this method returns. */
    void append(String line) throws BKException, InterruptedException {
        ledger.addEntry(line.getBytes());
    }

    /** Returns all lines of a journal, and fences its writer. */
    static List<String> recover(BookKeeper client, long id) throws BKException, InterruptedException {
        List<String> lines = new ArrayList<>();
        try (LedgerHandle ledger = client.openLedger(id, DigestType.CRC32C, PASSWORD)) {
            if (ledger.getLastAddConfirmed() >= 0) {
                Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
                while (entries.hasMoreElements()) {
                    lines.add(new String(entries.nextElement().getEntry()));
                }
            }
        }
        return lines;
    }
}
