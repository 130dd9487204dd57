package bookstand.benchmarks.bookies;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import org.apache.bookkeeper.server.Main;
import org.apache.zookeeper.server.ZooKeeperServerMain;

/** ZooKeeper and a bookie in one process: {@code Together ZOOKEEPER-PORT ZOOKEEPER-FOLDER BOOKIE-SETTINGS}. */
public final class Together {

    private static final int LOOK_MILLIS = 2;

    private Together() {
    }

    public static void main(String[] arguments) throws Exception {
        String[] ofZooKeeper = {arguments[0], arguments[1]};
        Thread zookeeper = new Thread(() -> ZooKeeperServerMain.main(ofZooKeeper), "zookeeper");
        zookeeper.setDaemon(true);
        zookeeper.start();
        while (!listens(Integer.parseInt(arguments[0]))) {
            Thread.sleep(LOOK_MILLIS);
        }
        Main.main(new String[] {"--conf", arguments[2]});
    }

    private static boolean listens(int port) {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress("127.0.0.1", port));
            return true;
        } catch (IOException e) {
            return false;
        }
    }
}
