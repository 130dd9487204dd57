package bookstand.interop.wire;

import bookstand.interop.Cluster;
import com.fasterxml.jackson.databind.JsonNode;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Clients by name and settings; scenarios with the same ones share them, until one closes them. */
final class Clients {

    static final int TIMEOUT_SECONDS = 20;
    private static final int ZOOKEEPER_MILLIS = 30_000;

    private final Map<String, BookKeeper> open = new HashMap<>();

    BookKeeper get(Cluster served, String name, JsonNode settings) throws Exception {
        String key = name + " " + settings;
        if (!open.containsKey(key)) {
            open.put(key, BookKeeper.forConfig(configuration(served, settings)).build());
        }
        return open.get(key);
    }

    Collection<BookKeeper> all() {
        return open.values();
    }

    /** Nobody is to get it again. */
    void forget(BookKeeper client) {
        open.values().remove(client);
    }

    void close() throws Exception {
        for (BookKeeper client : open.values()) {
            client.close();
        }
        open.clear();
    }

    private static ClientConfiguration configuration(Cluster served, JsonNode settings) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(served.uri());
        conf.setZkTimeout(ZOOKEEPER_MILLIS);
        conf.setAddEntryTimeout(TIMEOUT_SECONDS);
        conf.setReadEntryTimeout(TIMEOUT_SECONDS);
        // No bookie is asked because another one is slow: what comes of an operation is not to depend on speed.
        conf.setFirstSpeculativeReadTimeout(TIMEOUT_SECONDS * 1_000);
        conf.setFirstSpeculativeReadLACTimeout(TIMEOUT_SECONDS * 1_000);
        conf.setUseV2WireProtocol(settings.path("wire").asText("v3").equals("v2"));
        conf.setBatchReadEnabled(settings.path("batch_read_enabled").asBoolean(true));
        conf.setEnableDigestTypeAutodetection(settings.path("digest_autodetect").asBoolean(true));
        conf.setExplictLacInterval(settings.path("explicit_lac_interval_ms").asInt(conf.getExplictLacInterval()));
        conf.setNettyMaxFrameSizeBytes(settings.path("frame_bytes").asInt(conf.getNettyMaxFrameSizeBytes()));
        conf.setAddEntryQuorumTimeout(settings.path("add_quorum_timeout_sec").asInt(conf.getAddEntryQuorumTimeout()));
        conf.setLedgerMetadataFormatVersion(
                settings.path("metadata_format").asInt(conf.getLedgerMetadataFormatVersion()));
        conf.setProperty(
                "opportunisticStriping",
                settings.path("opportunistic_striping").asBoolean(conf.getOpportunisticStriping()));
        return conf;
    }
}
