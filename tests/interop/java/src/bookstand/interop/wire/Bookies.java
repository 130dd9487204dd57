package bookstand.interop.wire;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.bookkeeper.client.LedgerHandle;

/** What was done to bookies, as rules for what goes wrong in the served store. */
final class Bookies {

    private static final Map<String, List<String>> FAULTS = Map.of(
            // The first bit behind the header of an entry, which is one of its digest. Of what is damaged there is no
            // LAC to be learnt.
            "read_corrupt", List.of("flip@read(%d)=256", "fail@read_lac(%d)*inf=-1"),
            "read_eio", List.of("fail@read(%d)*inf=-1"),
            "read_no_entry", List.of("fail@read(%d)*inf=-13"),
            "read_no_ledger", List.of("fail@read(%d)*inf=-7"),
            "read_unknown", List.of("fail@read(%d)*inf=-108"),
            "add_eio", List.of("fail@append(%d)*inf=-12"),
            "fence_eio", List.of("fail@fence(%d)*inf=-1"));

    private final Scenario scenario;
    private final Set<Long> held = new HashSet<>();
    private final List<String> holds = new ArrayList<>();
    private final List<String> faults = new ArrayList<>();

    Bookies(Scenario scenario) {
        this.scenario = scenario;
    }

    void addTo(Map<String, Scenario.Operation> operations) {
        operations.put("bookie_hold", op -> {
            held.add(id(op));
            return Call.done(null);
        });
        operations.put("bookie_release", op -> {
            held.clear();
            return takeOut(holds);
        });
        operations.put("bookie_fault", op -> {
            for (String rule : FAULTS.get(op.get("kind").asText())) {
                putIn(faults, String.format(rule, id(op)));
            }
            return Call.done(null);
        });
        operations.put("bookie_faults_off", op -> takeOut(faults));
        operations.put("bookie_restart", op -> {
            scenario.served.restart();
            return Call.done(null);
        });
    }

    /**
     * Before an add, which is stored but not answered where the bookies hold what is added. What a recovery writes
     * again is answered.
     */
    void holdIfHeld(LedgerHandle handle, long entry) throws Exception {
        if (held.contains(handle.getId())) {
            int copies = handle.getLedgerMetadata().getWriteQuorumSize();
            putIn(holds, String.format("stall+after@append(%d:%d)*%d", handle.getId(), entry, copies));
        }
    }

    private long id(JsonNode op) {
        return scenario.names.id(op.get("ledger"));
    }

    private void putIn(List<String> rules, String rule) throws Exception {
        rules.add(rule);
        scenario.served.putIn(rule);
    }

    private Call<?> takeOut(List<String> rules) throws Exception {
        for (String rule : rules) {
            scenario.served.takeOut(rule);
        }
        rules.clear();
        return Call.done(null);
    }
}
