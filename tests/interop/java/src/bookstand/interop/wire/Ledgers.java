package bookstand.interop.wire;

import bookstand.interop.Json;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.CreateAdvBuilder;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DeleteBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.LedgersIterator;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.client.api.OpenBuilder;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

/** Operations on ledgers as a whole: they are created, opened, deleted, listed, and their metadata changed. */
final class Ledgers {

    private final Scenario scenario;

    Ledgers(Scenario scenario) {
        this.scenario = scenario;
    }

    void addTo(Map<String, Scenario.Operation> operations) {
        operations.put("create", op -> Call.of(builder(op).execute(), handle -> created(op, (LedgerHandle) handle)));
        operations.put("create_adv", this::createAdv);
        operations.put("open", op -> op.has("api") ? openByCallback(op) : open(op));
        operations.put("delete", this::delete);
        operations.put("list", op -> Call.of(scenario.client(op).newListLedgersOp().execute(), this::listed));
        operations.put("list_remove", op -> Call.of(scenario.client(op).newListLedgersOp().execute(), ids -> {
            ids.toIterable().iterator().remove();
            return null;
        }));
        operations.put("list_all_twice", op -> Call.of(scenario.client(op).newListLedgersOp().execute(), ids -> {
            ids.iterator();
            return ids.iterator();
        }));
        operations.put("metadata", op -> Call.of(
                scenario.client(op).getLedgerManager().readLedgerMetadata(id(op)), Ledgers::described));
        operations.put("metadata_write", this::writeMetadata);
        operations.put("is_closed", op -> {
            BookKeeper client = scenario.client(op);
            return Call.in(() -> client.isClosed(id(op)), closed -> closed);
        });
    }

    private long id(JsonNode op) {
        return scenario.names.id(op.get("ledger"));
    }

    private CreateBuilder builder(JsonNode op) throws Exception {
        CreateBuilder builder = scenario.client(op).newCreateLedgerOp();
        if (op.has("ensemble")) {
            builder.withEnsembleSize(op.get("ensemble").asInt());
        }
        if (op.has("write_quorum")) {
            builder.withWriteQuorumSize(op.get("write_quorum").asInt());
        }
        if (op.has("ack_quorum")) {
            builder.withAckQuorumSize(op.get("ack_quorum").asInt());
        }
        if (op.has("digest")) {
            builder.withDigestType(digest(op));
        }
        if (op.has("password")) {
            builder.withPassword(Values.password(op));
        }
        if (op.has("custom_metadata")) {
            builder.withCustomMetadata(Values.octets(op.get("custom_metadata")));
        }
        if (op.path("deferred_sync").asBoolean()) {
            builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        if (op.has("write_flags")) {
            builder.withWriteFlags((EnumSet<WriteFlag>) null);
        }
        return builder;
    }

    private static DigestType digest(JsonNode op) {
        return Json.given(op, "digest") ? DigestType.valueOf(op.get("digest").asText()) : null;
    }

    private Call<?> createAdv(JsonNode op) throws Exception {
        CreateAdvBuilder builder = builder(op).makeAdv();
        if (op.has("ledger")) {
            builder.withLedgerId(id(op));
        }
        return Call.of(builder.execute(), handle -> created(op, (LedgerHandle) handle));
    }

    private String created(JsonNode op, LedgerHandle handle) {
        if (op.has("handle")) {
            scenario.handles.put(op.get("handle").asText(), handle);
        }
        return scenario.names.created(handle.getId(), op.has("ledger"));
    }

    private Call<?> open(JsonNode op) throws Exception {
        OpenBuilder builder = scenario.client(op).newOpenLedgerOp();
        if (op.has("ledger")) {
            builder.withLedgerId(id(op));
        }
        if (op.has("recovery")) {
            builder.withRecovery(op.get("recovery").asBoolean());
        }
        if (op.has("password")) {
            builder.withPassword(Values.password(op));
        }
        if (op.has("digest")) {
            builder.withDigestType(digest(op));
        }
        return Call.of(builder.execute(), handle -> opened(op, (LedgerHandle) handle));
    }

    private Call<?> openByCallback(JsonNode op) throws Exception {
        BookKeeper client = scenario.client(op);
        BookKeeper.DigestType digest = BookKeeper.DigestType.fromApiDigestType(digest(op));
        return Call.in(() -> op.get("recovery").asBoolean()
                ? client.openLedger(id(op), digest, Values.password(op))
                : client.openLedgerNoRecovery(id(op), digest, Values.password(op)), handle -> opened(op, handle));
    }

    private String opened(JsonNode op, LedgerHandle handle) {
        if (op.has("handle")) {
            scenario.handles.put(op.get("handle").asText(), handle);
            scenario.readers.add(handle);
        }
        return scenario.names.of(handle.getId());
    }

    private Call<?> delete(JsonNode op) throws Exception {
        DeleteBuilder builder = scenario.client(op).newDeleteLedgerOp();
        if (op.has("ledger")) {
            builder.withLedgerId(id(op));
        }
        return Call.of(builder.execute(), done -> null);
    }

    /** Those of the scenario. */
    private List<String> listed(ListLedgersResult result) {
        List<String> listed = new ArrayList<>();
        try {
            for (LedgersIterator ids = result.iterator(); ids.hasNext();) {
                long id = ids.next();
                if (scenario.names.has(id)) {
                    listed.add(scenario.names.of(id));
                }
            }
        } catch (IOException e) {
            throw new CompletionException(e);
        }
        return listed;
    }

    private static Map<String, Object> described(Versioned<LedgerMetadata> versioned) {
        LedgerMetadata metadata = versioned.getValue();
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("state", metadata.getState().name());
        described.put("ensemble", metadata.getEnsembleSize());
        described.put("write_quorum", metadata.getWriteQuorumSize());
        described.put("ack_quorum", metadata.getAckQuorumSize());
        described.put("length", metadata.getLength());
        described.put("last_entry", metadata.getLastEntryId());
        described.put("has_password", metadata.hasPassword());
        described.put("password", metadata.hasPassword() ? new String(metadata.getPassword()) : null);
        described.put("digest", metadata.hasPassword() ? metadata.getDigestType().name() : null);
        described.put("format", metadata.getMetadataFormatVersion());
        described.put("ctime_set", metadata.getCtime() >= 0);
        described.put("custom_metadata", Values.written(metadata.getCustomMetadata()));
        List<Object> ensembles = new ArrayList<>();
        metadata.getAllEnsembles().forEach(
                (first, bookies) -> ensembles.add(Map.of("first_entry", first, "size", bookies.size())));
        described.put("ensembles", ensembles);
        described.put("version", ((LongVersion) versioned.getVersion()).getLongVersion());
        return described;
    }

    /** Past all handles. */
    private Call<?> writeMetadata(JsonNode op) throws Exception {
        LedgerManager manager = scenario.client(op).getLedgerManager();
        return Call.of(manager.readLedgerMetadata(id(op)).thenCompose(read -> {
            LedgerMetadataBuilder changed = LedgerMetadataBuilder.from(read.getValue());
            if (op.has("custom_metadata")) {
                changed.withCustomMetadata(Values.octets(op.get("custom_metadata")));
            } else if (op.has("last_entry")) {
                changed.withClosedState().withLastEntryId(op.get("last_entry").asLong())
                        .withLength(op.get("length").asLong());
            } else {
                changed.withInRecoveryState();
            }
            long version = ((LongVersion) read.getVersion()).getLongVersion() + op.path("version_offset").asLong(0);
            Version expected = op.path("version_any").asBoolean() ? Version.ANY : new LongVersion(version);
            return manager.writeLedgerMetadata(id(op), changed.build(), expected);
        }), written -> ((LongVersion) written.getVersion()).getLongVersion());
    }
}
