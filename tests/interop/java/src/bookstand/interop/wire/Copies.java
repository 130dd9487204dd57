package bookstand.interop.wire;

import bookstand.interop.Cluster;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.bookkeeper.proto.BookieProtocol;

/** Which entries lie on bookies, and what stands in their headers: asked of each by itself, without a client. */
final class Copies {

    private final Cluster served;

    Copies(Cluster served) {
        this.served = served;
    }

    /** As {@code stored} is recorded, of one entry. */
    Map<String, Object> of(long ledger, long entry) throws Exception {
        Map<String, Object> copies = new LinkedHashMap<>();
        copies.put("entry", entry);
        copies.put("present", false);
        for (JsonNode bookie : served.bookies()) {
            ByteBuffer stored = read(bookie.get("address").asText(), ledger, entry);
            if (stored != null) {
                copies.put("present", true);
                copies.put("lac", stored.getLong(2 * Long.BYTES));
                copies.put("cumulative_length", stored.getLong(3 * Long.BYTES));
                copies.put("stored_size", stored.remaining());
            }
        }
        return copies;
    }

    /** How many bookies have an entry. */
    int count(long ledger, long entry) throws Exception {
        int count = 0;
        for (JsonNode bookie : served.bookies()) {
            count += read(bookie.get("address").asText(), ledger, entry) == null ? 0 : 1;
        }
        return count;
    }

    private static ByteBuffer read(String address, long ledger, long entry) throws Exception {
        int colon = address.lastIndexOf(':');
        try (Socket socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)))) {
            ByteBuffer request = ByteBuffer.allocate(Integer.BYTES + Integer.BYTES + 2 * Long.BYTES);
            request.putInt(request.capacity() - Integer.BYTES);
            request.putInt(BookieProtocol.PacketHeader.toInt(
                    BookieProtocol.CURRENT_PROTOCOL_VERSION, BookieProtocol.READENTRY, BookieProtocol.FLAG_NONE));
            request.putLong(ledger).putLong(entry);
            new DataOutputStream(socket.getOutputStream()).write(request.array());
            DataInputStream in = new DataInputStream(socket.getInputStream());
            ByteBuffer answer = ByteBuffer.wrap(in.readNBytes(in.readInt()));
            answer.getInt();
            int code = answer.getInt();
            answer.position(answer.position() + 2 * Long.BYTES);
            return code == BookieProtocol.EOK ? answer.slice() : null;
        }
    }
}
