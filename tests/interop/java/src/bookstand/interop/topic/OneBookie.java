package bookstand.interop.topic;

import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import org.apache.bookkeeper.bookie.SortedLedgerStorage;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/** ZooKeeper and one bookie of the original in this process, with nothing in them. */
final class OneBookie {

    private static final int PATIENCE_MILLIS = 60_000;

    final BookKeeper client;
    final MetadataStoreExtended metadata;

    OneBookie() throws Exception {
        File scratch = Files.createTempDirectory("bookie").toFile();
        NIOServerCnxnFactory zookeeper = new NIOServerCnxnFactory();
        zookeeper.configure(new InetSocketAddress("127.0.0.1", 0), 1000);
        zookeeper.startup(new ZooKeeperServer(new File(scratch, "snapshots"), new File(scratch, "log"), 1000));
        String servers = "127.0.0.1:" + zookeeper.getLocalPort();
        String uri = "zk+hierarchical://" + servers + "/ledgers";
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(uri);
        conf.setZkTimeout(PATIENCE_MILLIS);
        conf.setJournalDirName(new File(scratch, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(scratch, "ledgers").getPath()});
        conf.setLedgerStorageClass(SortedLedgerStorage.class.getName());
        conf.setJournalSyncData(false);
        conf.setJournalMaxGroupWaitMSec(0);
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setAllowEphemeralPorts(true);
        conf.setBookiePort(0);
        conf.setHttpServerEnabled(false);
        conf.setAutoRecoveryDaemonEnabled(false);
        conf.setDiskUsageThreshold(0.99f);
        conf.setDiskUsageWarnThreshold(0.98f);
        conf.setBookieId("bookie-0");
        BookKeeperAdmin.initNewCluster(conf);
        EmbeddedServer.builder(new BookieConfiguration(conf)).build().getLifecycleComponentStack().start();
        ClientConfiguration reading = new ClientConfiguration();
        reading.setMetadataServiceUri(uri);
        reading.setZkTimeout(PATIENCE_MILLIS);
        client = BookKeeper.forConfig(reading).build();
        metadata = MetadataStoreExtended.create("zk:" + servers, MetadataStoreConfig.builder().build());
    }
}
