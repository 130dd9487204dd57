package bookstand.benchmarks.bookies;

import bookstand.benchmarks.Rounds;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * The original's client, adding to whatever cluster it is told of.
 *
 * <p>A line of "name=value" words on stdin asks for a round: where ("uri"), with which "version" of the protocol, how
 * many adds ("count") of so many "bytes", and how many of them under way at a time ("window"). A line of the same form
 * answers, in nanoseconds. Clients are kept, ledgers are new for each round.
 */
public final class Client implements Rounds {

    private static final byte[] PASSWORD = {};

    private final Map<String, BookKeeper> clients = new HashMap<>();

    private Client() {
    }

    public static void main(String[] arguments) {
        // The original's threads are not asked to end.
        try {
            new Client().answer();
            System.exit(0);
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    @Override
    public String round(Map<String, String> asked) throws Exception {
        int count = Integer.parseInt(asked.get("count"));
        byte[] payload = new byte[Integer.parseInt(asked.get("bytes"))];
        int window = Integer.parseInt(asked.get("window"));
        LedgerHandle ledger = client(asked.get("uri"), asked.get("version"))
                .createLedger(1, 1, 1, DigestType.CRC32C, PASSWORD);
        Semaphore underWay = new Semaphore(window);
        AtomicInteger failure = new AtomicInteger(BKException.Code.OK);
        long begun = System.nanoTime();
        for (int i = 0; i < count; i++) {
            underWay.acquire();
            ledger.asyncAddEntry(payload, (rc, handle, entry, context) -> {
                if (rc != BKException.Code.OK) {
                    failure.set(rc);
                }
                underWay.release();
            }, null);
        }
        underWay.acquire(window);
        long wall = System.nanoTime() - begun;
        if (failure.get() != BKException.Code.OK) {
            throw BKException.create(failure.get());
        }
        ledger.close();
        return "adds=" + (ledger.getLastAddConfirmed() + 1) + " wall=" + wall;
    }

    private BookKeeper client(String uri, String version) throws Exception {
        BookKeeper known = clients.get(uri + version);
        if (known == null) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(uri);
            conf.setUseV2WireProtocol(version.equals("2"));
            conf.setThrottleValue(0);
            known = BookKeeper.forConfig(conf).build();
            clients.put(uri + version, known);
        }
        return known;
    }
}
