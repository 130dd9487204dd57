package bookstand.interop.wire;

import bookstand.interop.Served;
import java.net.URI;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/** Many requests of an original client that are outstanding on one connection; the result is the number of answers. */
final class Outstanding {

    private static final int PATIENCE_SECONDS = 120;
    private static final byte[] VALUE = new byte[300];
    private static final byte[] PASSWORD = {'p', 'w'};

    private Outstanding() {
    }

    static String run(Served served, String client, int count) throws Exception {
        return client.equals("zookeeper") ? ofZooKeeper(served, count) : ofBookKeeper(served, client, count);
    }

    private static String ofZooKeeper(Served served, int count) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        Answers answers = new Answers(count);
        int ok = KeeperException.Code.OK.intValue();
        try (ZooKeeper client = new ZooKeeper(
                URI.create(served.uri().replace("zk+hierarchical", "zk")).getAuthority(),
                PATIENCE_SECONDS * 1_000,
                event -> connected.countDown())) {
            connected.await(PATIENCE_SECONDS, TimeUnit.SECONDS);
            String path = client.create("/outstanding", VALUE, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            for (int i = 0; i < count; i++) {
                switch (i % 100) {
                    case 0:
                        client.setData(path, VALUE, -1, (rc, p, c, stat) -> answers.add(rc == ok), null);
                        break;
                    case 1:
                        client.multi(
                                List.of(Op.getData(path), Op.getChildren(path)),
                                (rc, p, c, results) -> answers.add(rc == ok),
                                null);
                        break;
                    default:
                        client.getData(path, false, (rc, p, c, data, stat) -> answers.add(rc == ok), null);
                }
            }
            return answers.await();
        }
    }

    private static String ofBookKeeper(Served served, String version, int count) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(served.uri());
        conf.setUseV2WireProtocol(version.equals("v2"));
        conf.setNumChannelsPerBookie(1);
        conf.setThrottleValue(0);
        conf.setAddEntryTimeout(PATIENCE_SECONDS);
        conf.setReadEntryTimeout(PATIENCE_SECONDS);
        try (BookKeeper client = BookKeeper.forConfig(conf).build();
                LedgerHandle ledger = client.createLedger(1, 1, 1, BookKeeper.DigestType.CRC32C, PASSWORD)) {
            Answers added = new Answers(count);
            for (int i = 0; i < count; i++) {
                ledger.asyncAddEntry(VALUE, (rc, l, id, c) -> added.add(rc == BKException.Code.OK), null);
            }
            String adds = added.await();
            Answers read = new Answers(count);
            for (int i = 0; i < count; i++) {
                ledger.asyncReadEntries(i, i, (rc, l, entries, c) -> read.add(rc == BKException.Code.OK), null);
            }
            return adds + " " + read.await();
        }
    }

    /** Those that were as they should be. */
    private static final class Answers {

        private final AtomicInteger good = new AtomicInteger();
        private final CountDownLatch all;

        Answers(int count) {
            all = new CountDownLatch(count);
        }

        void add(boolean isGood) {
            good.addAndGet(isGood ? 1 : 0);
            all.countDown();
        }

        String await() throws InterruptedException {
            all.await(PATIENCE_SECONDS, TimeUnit.SECONDS);
            return good.toString();
        }
    }
}
