package bookstand.benchmarks.bookies;

import java.io.File;
import java.net.InetSocketAddress;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/**
 * The original's servers: {@code Server FOLDER PARTS ZOOKEEPER-PORT BOOKIE-PORT}, until the process is killed.
 *
 * <p>The parts are {@code zookeeper}, {@code bookie} or {@code zookeeper+bookie}, in one process. A bookie has the
 * original's own settings, but for where it is, that the disk may be almost full, and that there is nobody beside it who
 * looks after lost copies.
 */
public final class Server {

    private static final int TICK_MILLIS = 2000;

    private Server() {
    }

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        String parts = arguments[1];
        int zookeeperPort = Integer.parseInt(arguments[2]);
        if (parts.startsWith("zookeeper")) {
            NIOServerCnxnFactory zookeeper = new NIOServerCnxnFactory();
            zookeeper.configure(new InetSocketAddress("127.0.0.1", zookeeperPort), 100);
            zookeeper.startup(new ZooKeeperServer(
                    new File(folder, "zookeeper-snapshots"), new File(folder, "zookeeper-log"), TICK_MILLIS));
        }
        if (parts.endsWith("bookie")) {
            ServerConfiguration conf = configuration(folder, zookeeperPort, Integer.parseInt(arguments[3]));
            if (!new File(folder, "journal").exists()) {
                BookKeeperAdmin.initNewCluster(conf);
            }
            EmbeddedServer.builder(new BookieConfiguration(conf)).build().getLifecycleComponentStack().start();
        }
        Thread.currentThread().join();
    }

    private static ServerConfiguration configuration(File folder, int zookeeperPort, int port) {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://127.0.0.1:" + zookeeperPort + "/ledgers");
        conf.setJournalDirName(new File(folder, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(folder, "ledgers").getPath()});
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setBookiePort(port);
        conf.setAutoRecoveryDaemonEnabled(false);
        conf.setDiskUsageThreshold(0.99f);
        conf.setDiskUsageWarnThreshold(0.98f);
        return conf;
    }
}
