package bookstand.interop.wire;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBufUtil;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;

/** Payloads, entries and maps of octets as recordings write them. */
final class Values {

    private static final int SHOWN_TEXT = 64;
    private static final int PRINTABLE_FROM = 0x20;
    private static final int PRINTABLE_TO = 0x7e;

    private Values() {
    }

    /** Text, or so many octets of what a seed gives. */
    static byte[] payload(JsonNode data) throws Exception {
        if (data.isTextual()) {
            return data.asText().getBytes(StandardCharsets.UTF_8);
        }
        byte[] payload = new byte[data.get("len").asInt()];
        for (int at = 0, block = 0; at < payload.length; block++) {
            byte[] octets = sha256((data.get("seed").asText() + ":" + block).getBytes(StandardCharsets.UTF_8));
            int count = Math.min(octets.length, payload.length - at);
            System.arraycopy(octets, 0, payload, at, count);
            at += count;
        }
        return payload;
    }

    static byte[] password(JsonNode operation) {
        JsonNode password = operation.get("password");
        return password.isNull() ? null : password.asText().getBytes(StandardCharsets.UTF_8);
    }

    static Map<String, byte[]> octets(JsonNode written) {
        if (written.isNull()) {
            return null;
        }
        Map<String, byte[]> octets = new HashMap<>();
        written.fields().forEachRemaining(
                field -> octets.put(field.getKey(), Base64.getDecoder().decode(field.getValue().asText())));
        return octets;
    }

    static Map<String, String> written(Map<String, byte[]> octets) {
        Map<String, String> written = new TreeMap<>();
        octets.forEach((key, value) -> written.put(key, Base64.getEncoder().encodeToString(value)));
        return written;
    }

    static Map<String, Object> entry(org.apache.bookkeeper.client.api.LedgerEntry entry) {
        return entry(entry.getEntryId(), entry.getEntryBytes(), entry.getLength());
    }

    static Map<String, Object> entry(LedgerEntry entry) {
        return entry(entry.getEntryId(), entry.getEntry(), entry.getLength());
    }

    private static Map<String, Object> entry(long id, byte[] data, long cumulativeLength) {
        Map<String, Object> entry = new LinkedHashMap<>();
        entry.put("entry", id);
        entry.put("data", shown(data));
        entry.put("length", data.length);
        entry.put("cumulative_length", cumulativeLength);
        return entry;
    }

    static List<Object> entries(LedgerEntries read) {
        List<Object> entries = new ArrayList<>();
        read.forEach(entry -> entries.add(entry(entry)));
        read.close();
        return entries;
    }

    static List<Object> entries(Enumeration<LedgerEntry> read) {
        List<Object> entries = new ArrayList<>();
        while (read.hasMoreElements()) {
            entries.add(entry(read.nextElement()));
        }
        return entries;
    }

    private static Object shown(byte[] data) {
        boolean printable = data.length <= SHOWN_TEXT;
        for (int i = 0; printable && i < data.length; i++) {
            printable = data[i] >= PRINTABLE_FROM && data[i] <= PRINTABLE_TO;
        }
        if (printable) {
            return new String(data, StandardCharsets.US_ASCII);
        }
        return Map.of("len", data.length, "sha256", ByteBufUtil.hexDump(sha256(data)));
    }

    private static byte[] sha256(byte[] data) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(data);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
