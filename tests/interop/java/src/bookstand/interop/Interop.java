package bookstand.interop;

import static bookstand.interop.Lines.bytes;
import static bookstand.interop.Lines.hex;
import static bookstand.interop.Lines.text;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
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

/** Answers questions about bytes with BookKeeper's own classes. */
public final class Interop {

    private static final Map<String, Lines.Question> QUESTIONS = Map.of(
            "entry", Interop::entry,
            "explicit_lac", Interop::explicitLac,
            "metadata", Interop::metadata,
            "shell", Shell::commands);

    private Interop() {
    }

    public static void main(String[] args) throws Exception {
        Lines.answer(args, QUESTIONS);
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
}
