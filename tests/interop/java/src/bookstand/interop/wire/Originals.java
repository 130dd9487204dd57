package bookstand.interop.wire;

import bookstand.interop.Cluster;
import bookstand.interop.Json;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.BookieResources;
import org.apache.bookkeeper.bookie.LedgerDirsManager;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.bookie.LegacyCookieValidation;
import org.apache.bookkeeper.bookie.UncleanShutdownDetectionImpl;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.DiskChecker;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/** Three bookies of the original and ZooKeeper, in this process. */
final class Originals implements Cluster {

    /** What a bookie is made of. */
    record Parts(ServerConfiguration conf, RegistrationManager registration, LedgerStorage storage, DiskChecker disk,
            LedgerDirsManager ledgers, LedgerDirsManager indexes) {
    }

    private static final int BOOKIES = 3;
    private static final int ZOOKEEPER_MILLIS = 60_000;
    private static final int DAY_SECONDS = 86_400;

    private final String uri;
    private final File scratch;
    private final int[] ports = new int[BOOKIES];
    private final BookieServer[] servers = new BookieServer[BOOKIES];
    private final MetadataBookieDriver[] drivers = new MetadataBookieDriver[BOOKIES];
    private final CopyOnWriteArrayList<FaultyBookie.Rule> rules = new CopyOnWriteArrayList<>();
    private final Map<String, FaultyBookie.Rule> named = new HashMap<>();

    Originals() throws Exception {
        scratch = Files.createTempDirectory("bookies").toFile();
        NIOServerCnxnFactory zookeeper = new NIOServerCnxnFactory();
        zookeeper.configure(new InetSocketAddress("127.0.0.1", 0), 1000);
        zookeeper.startup(new ZooKeeperServer(new File(scratch, "snapshots"), new File(scratch, "log"), 1000));
        uri = "zk+hierarchical://127.0.0.1:" + zookeeper.getLocalPort() + "/ledgers";
        for (int i = 0; i < BOOKIES; i++) {
            try (ServerSocket free = new ServerSocket(0)) {
                ports[i] = free.getLocalPort();
            }
        }
        BookKeeperAdmin.initNewCluster(configuration(1));
        for (int number = 1; number <= BOOKIES; number++) {
            startBookie(number);
        }
    }

    private ServerConfiguration configuration(int number) {
        File folder = new File(scratch, "bookie-" + number);
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(uri);
        conf.setZkTimeout(ZOOKEEPER_MILLIS);
        conf.setJournalDirName(new File(folder, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(folder, "ledgers").getPath()});
        conf.setJournalSyncData(false);
        conf.setJournalMaxGroupWaitMSec(1);
        conf.setJournalFlushWhenQueueEmpty(true);
        conf.setNumAddWorkerThreads(1);
        conf.setGcWaitTime(DAY_SECONDS * 1_000L);
        conf.setMinorCompactionInterval(0);
        conf.setMajorCompactionInterval(0);
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setBookiePort(ports[number - 1]);
        conf.setHttpServerEnabled(false);
        conf.setDiskUsageThreshold(0.99f);
        conf.setDiskUsageWarnThreshold(0.98f);
        return conf;
    }

    @Override
    public String uri() {
        return uri;
    }

    @Override
    public JsonNode bookies() {
        List<Object> bookies = new ArrayList<>();
        for (int port : ports) {
            bookies.add(Map.of("name", "127.0.0.1:" + port, "address", "127.0.0.1:" + port));
        }
        return Json.of(bookies);
    }

    @Override
    public void putIn(String rule) {
        FaultyBookie.Rule made = new FaultyBookie.Rule(rule);
        named.put(rule, made);
        rules.add(made);
    }

    @Override
    public void takeOut(String rule) {
        FaultyBookie.Rule ending = named.remove(rule);
        if (ending != null) {
            rules.remove(ending);
            ending.end();
        }
    }

    @Override
    public void takeOutAll() {
        List.copyOf(named.keySet()).forEach(this::takeOut);
    }

    @Override
    public int happened(String rule) {
        return named.containsKey(rule) ? named.get(rule).happened() : 0;
    }

    @Override
    public void stopBookie(int number) throws Exception {
        servers[number - 1].shutdown();
        drivers[number - 1].close();
    }

    @Override
    public void startBookie(int number) throws Exception {
        ServerConfiguration conf = configuration(number);
        MetadataBookieDriver driver = BookieResources.createMetadataDriver(conf, NullStatsLogger.INSTANCE);
        RegistrationManager registration = driver.createRegistrationManager();
        LedgerManagerFactory ledgerManagers = driver.getLedgerManagerFactory();
        DiskChecker disk = BookieResources.createDiskChecker(conf);
        LedgerDirsManager ledgers = BookieResources.createLedgerDirsManager(conf, disk, NullStatsLogger.INSTANCE);
        LedgerDirsManager indexes =
                BookieResources.createIndexDirsManager(conf, disk, NullStatsLogger.INSTANCE, ledgers);
        List<File> folders = new ArrayList<>();
        for (File journal : conf.getJournalDirs()) {
            folders.add(BookieImpl.getCurrentDirectory(journal));
        }
        folders.addAll(ledgers.getAllLedgerDirs());
        for (File folder : folders) {
            BookieImpl.checkDirectoryStructure(folder);
        }
        new LegacyCookieValidation(conf, registration).checkCookies(folders);
        LedgerStorage storage = BookieResources.createLedgerStorage(conf, ledgerManagers.newLedgerManager(), ledgers,
                indexes, NullStatsLogger.INSTANCE, BookieResources.createAllocator(conf));
        FaultyBookie bookie = FaultyBookie.over(
                new Parts(conf, registration, storage, disk, ledgers, indexes), number, rules);
        BookieServer server = new BookieServer(conf, bookie, NullStatsLogger.INSTANCE,
                BookieResources.createAllocator(conf), new UncleanShutdownDetectionImpl(ledgers));
        server.start();
        servers[number - 1] = server;
        drivers[number - 1] = driver;
    }

    @Override
    public void restart() throws Exception {
        for (int number = 1; number <= BOOKIES; number++) {
            stopBookie(number);
            startBookie(number);
        }
    }
}
