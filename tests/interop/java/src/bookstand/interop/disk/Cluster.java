package bookstand.interop.disk;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.zip.GZIPInputStream;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/** ZooKeeper with the nodes of an exported dump, and a bookie on the exported disk, whose index is built first. */
final class Cluster {

    private static final int PATIENCE_MILLIS = 60_000;

    final BookKeeper client;
    private final NIOServerCnxnFactory zookeeper;
    private final String servers;
    private final EmbeddedServer bookie;
    private MetadataStoreExtended metadata;
    private ManagedLedgerFactoryImpl topics;

    Cluster(File folder, String name, File scratch) throws Exception {
        zookeeper = new NIOServerCnxnFactory();
        zookeeper.configure(new InetSocketAddress("127.0.0.1", 0), 1000);
        zookeeper.startup(new ZooKeeperServer(new File(scratch, "snapshots"), new File(scratch, "log"), 1000));
        servers = "127.0.0.1:" + zookeeper.getLocalPort();
        restore(new File(folder, "metadata.jsonl.gz"));
        ServerConfiguration conf = configuration(new File(folder, name), name);
        for (String command : new String[] {"rebuild-db-ledgers-index", "rebuild-db-ledger-locations-index"}) {
            BookieShell shell = new BookieShell();
            shell.setConf(conf);
            if (shell.run(new String[] {command}) != 0) {
                throw new IllegalStateException("bookkeeper shell " + command + " failed");
            }
        }
        bookie = EmbeddedServer.builder(new BookieConfiguration(conf)).build();
        bookie.getLifecycleComponentStack().start();
        ClientConfiguration reading = new ClientConfiguration();
        reading.setMetadataServiceUri(uri());
        reading.setZkTimeout(PATIENCE_MILLIS);
        client = BookKeeper.forConfig(reading).build();
    }

    private String uri() {
        return "zk+hierarchical://" + servers + "/ledgers";
    }

    private void restore(File dump) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        try (ZooKeeper store = new ZooKeeper(servers, PATIENCE_MILLIS, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                connected.countDown();
            }
        })) {
            if (!connected.await(PATIENCE_MILLIS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("ZooKeeper does not answer");
            }
            ObjectMapper json = new ObjectMapper();
            try (BufferedReader lines = new BufferedReader(new InputStreamReader(
                    new GZIPInputStream(new FileInputStream(dump)), StandardCharsets.UTF_8))) {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    JsonNode node = json.readTree(line);
                    store.create(node.get("path").asText(), Base64.getDecoder().decode(node.get("value").asText()),
                            ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                }
            }
        }
    }

    private ServerConfiguration configuration(File folder, String name) {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(uri());
        conf.setZkTimeout(PATIENCE_MILLIS);
        conf.setJournalDirName(new File(folder, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(folder, "ledgers").getPath()});
        conf.setLedgerStorageClass(DbLedgerStorage.class.getName());
        conf.setProperty(DbLedgerStorage.WRITE_CACHE_MAX_SIZE_MB, 16);
        conf.setProperty(DbLedgerStorage.READ_AHEAD_CACHE_MAX_SIZE_MB, 16);
        conf.setBookieId(name);
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setAllowEphemeralPorts(true);
        conf.setBookiePort(0);
        conf.setHttpServerEnabled(false);
        conf.setAutoRecoveryDaemonEnabled(false);
        conf.setDiskUsageThreshold(0.99f);
        conf.setDiskUsageWarnThreshold(0.98f);
        return conf;
    }

    /** What the bookie itself knows of its ledgers. */
    LedgerStorage storage() {
        return ((BookieImpl) bookie.getBookieService().getServer().getBookie()).getLedgerStorage();
    }

    /** Pulsar's topics over the bookie. */
    ManagedLedgerFactoryImpl topics() throws Exception {
        if (topics == null) {
            metadata = MetadataStoreExtended.create("zk:" + servers, MetadataStoreConfig.builder().build());
            topics = new ManagedLedgerFactoryImpl(metadata, client);
        }
        return topics;
    }

    void close() throws Exception {
        if (topics != null) {
            topics.shutdown();
            metadata.close();
        }
        client.close();
        bookie.getLifecycleComponentStack().close();
        zookeeper.shutdown();
    }
}
