package bookstand.benchmarks.bookies;

import java.io.BufferedReader;
import java.io.InputStreamReader;
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
public final class Client {

    private static final byte[] PASSWORD = {};

    private final Map<String, BookKeeper> clients = new HashMap<>();

    private Client() {
    }

    public static void main(String[] arguments) throws Exception {
        Client client = new Client();
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            Map<String, String> words = new HashMap<>();
            for (String word : line.trim().split(" ")) {
                int equals = word.indexOf('=');
                words.put(word.substring(0, equals), word.substring(equals + 1));
            }
            System.out.println(client.round(words));
            System.out.flush();
        }
        System.exit(0);
    }

    private String round(Map<String, String> asked) throws Exception {
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
