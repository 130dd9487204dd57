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
 * BookKeeper's client, adding entries to a given cluster.
 *
 * <p>Each line of "name=value" words on stdin requests a round: the cluster ("uri"), the protocol "version", the number
 * of adds ("count") and their size ("bytes"), and the maximum number of outstanding adds ("window"). A line of the same
 * form is the result, in nanoseconds. Clients are reused; each round creates a ledger.
 */
public final class Client implements Rounds {

    private static final byte[] PASSWORD = {};

    private final Map<String, BookKeeper> clients = new HashMap<>();

    private Client() {
    }

    public static void main(String[] arguments) {
        // BookKeeper's threads would keep the process alive.
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
