package bookstand.interop;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.LedgerMetadataFormat;
import org.apache.bookkeeper.proto.checksum.DigestManager;

/**
 * Answers questions about bytes with BookKeeper's own classes.
 *
 * <p>A request is one line: its kind, then {@code name=value} parted by tabs, bytes in hex. The answer is one line of
 * the same make, or {@code error=...} when BookKeeper throws.
 */
public final class Interop {

    private interface Question {
        void answer(Map<String, String> request, Map<String, String> answer) throws Exception;
    }

    private static final Map<String, Question> QUESTIONS = Map.of(
            "entry", Interop::entry,
            "explicit_lac", Interop::explicitLac,
            "metadata", Interop::metadata);

    private Interop() {
    }

    public static void main(String[] args) throws Exception {
        try (BufferedReader in = Files.newBufferedReader(Path.of(args[0]));
                PrintWriter out = new PrintWriter(Files.newBufferedWriter(Path.of(args[1])))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.print(answer(line) + "\n");
            }
        }
    }

    private static String answer(String line) {
        String[] parts = line.split("\t");
        Map<String, String> request = new LinkedHashMap<>();
        for (int i = 1; i < parts.length; i++) {
            int split = parts[i].indexOf('=');
            request.put(parts[i].substring(0, split), parts[i].substring(split + 1));
        }
        Map<String, String> answer = new LinkedHashMap<>();
        try {
            QUESTIONS.get(parts[0]).answer(request, answer);
        } catch (Throwable e) {
            answer.clear();
            answer.put("error", e.toString().replaceAll("[\t\n\r]", " "));
        }
        return answer.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue()).collect(Collectors.joining("\t"));
    }

    /** What a client takes a stored entry for, and what it would have stored itself. */
    private static void entry(Map<String, String> request, Map<String, String> answer) throws Exception {
        DigestManager manager = manager(request);
        byte[] stored = bytes(request.get("stored"));
        ByteBuf data = manager.verifyDigestAndReturnData(Long.parseLong(request.get("entry")), buffer(stored));
        answer.put("payload", ByteBufUtil.hexDump(data));
        DigestManager.RecoveryData last = manager.verifyDigestAndReturnLastConfirmed(buffer(stored));
        answer.put("lac", String.valueOf(last.getLastAddConfirmed()));
        answer.put("length", String.valueOf(last.getLength()));
        answer.put("master_key", ByteBufUtil.hexDump(DigestManager.generateMasterKey(bytes(request.get("password")))));
    }

    private static void explicitLac(Map<String, String> request, Map<String, String> answer) throws Exception {
        long lac = manager(request).verifyDigestAndReturnLac(buffer(bytes(request.get("body"))));
        answer.put("lac", String.valueOf(lac));
    }

    private static void metadata(Map<String, String> request, Map<String, String> answer) throws Exception {
        LedgerMetadataSerDe serDe = new LedgerMetadataSerDe();
        Optional<Long> storeCtime = Optional.ofNullable(request.get("store_ctime")).map(Long::valueOf);
        LedgerMetadata metadata =
                serDe.parseConfig(bytes(request.get("bytes")), Long.parseLong(request.get("ledger")), storeCtime);
        answer.put("format", String.valueOf(metadata.getMetadataFormatVersion()));
        answer.put("ensemble", String.valueOf(metadata.getEnsembleSize()));
        answer.put("write_quorum", String.valueOf(metadata.getWriteQuorumSize()));
        answer.put("ack_quorum", String.valueOf(metadata.getAckQuorumSize()));
        answer.put("state", metadata.getState().toString());
        answer.put("last_entry", String.valueOf(metadata.getLastEntryId()));
        answer.put("length", String.valueOf(metadata.getLength()));
        answer.put("has_password", String.valueOf(metadata.hasPassword()));
        answer.put("digest", String.valueOf(metadata.getDigestType()));
        answer.put("password", hex(metadata.getPassword()));
        answer.put("ctime", String.valueOf(metadata.getCtime()));
        answer.put("ctoken", String.valueOf(metadata.getCToken()));
        Map<String, String> custom = new TreeMap<>();
        metadata.getCustomMetadata().forEach((key, value) -> custom.put(text(key), hex(value)));
        answer.put("custom", custom.entrySet().stream()
                .map(e -> e.getKey() + ":" + e.getValue()).collect(Collectors.joining(",")));
        answer.put("ensembles", metadata.getAllEnsembles().entrySet().stream()
                .map(e -> e.getKey() + ":" + members(e.getValue())).collect(Collectors.joining(";")));
        answer.put("string", text(metadata.toString()));
        answer.put("safe_string", text(metadata.toSafeString()));
        String again;
        try {
            again = hex(serDe.serialize(metadata));
        } catch (Exception e) {
            again = "refused";
        }
        answer.put("again", again);
    }

    private static String members(List<BookieId> bookies) {
        return bookies.stream().map(BookieId::getId).collect(Collectors.joining(","));
    }

    private static DigestManager manager(Map<String, String> request) throws Exception {
        return DigestManager.instantiate(Long.parseLong(request.get("ledger")), bytes(request.get("password")),
                LedgerMetadataFormat.DigestType.valueOf(request.get("digest")), ByteBufAllocator.DEFAULT, false);
    }

    private static ByteBuf buffer(byte[] data) {
        return Unpooled.wrappedBuffer(data);
    }

    private static byte[] bytes(String hex) {
        return ByteBufUtil.decodeHexDump(hex);
    }

    private static String hex(byte[] data) {
        return ByteBufUtil.hexDump(data);
    }

    private static String text(String value) {
        return hex(value.getBytes(StandardCharsets.UTF_8));
    }
}
