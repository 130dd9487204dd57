package bookstand.interop.wire;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;

/** What was done to bookies, as rules for what goes wrong in the served store, and as bookies that stop and start. */
final class Bookies {

    /** Adds that wait: at which bookies, and whether before they are stored. */
    private record Hold(List<Integer> numbers, boolean before) {
    }

    private static final int ALL = 0;
    private static final Map<String, List<String>> FAULTS = Map.of(
            // The first bit behind the header of an entry, which is one of its digest. Of what is damaged there is no
            // LAC to be learnt.
            "read_corrupt", List.of("flip@read(%d)%s=256", "fail@read_lac(%d)%s*inf=-1"),
            "read_eio", List.of("fail@read(%d)%s*inf=-1"),
            "read_no_entry", List.of("fail@read(%d)%s*inf=-13"),
            "read_no_ledger", List.of("fail@read(%d)%s*inf=-7"),
            "read_unknown", List.of("fail@read(%d)%s*inf=-108"),
            "add_eio", List.of("fail@append(%d)%s*inf=-12"),
            "fence_eio", List.of("fail@fence(%d)%s*inf=-1"));

    private final Scenario scenario;
    private final Map<Long, Hold> held = new HashMap<>();
    private final List<String> holds = new ArrayList<>();
    /** By ledger, bookie and what fails: a bookie is broken in one way at a time. */
    private final Map<String, List<String>> faults = new TreeMap<>();
    private final TreeSet<Integer> stopped = new TreeSet<>();

    Bookies(Scenario scenario) {
        this.scenario = scenario;
    }

    void addTo(Map<String, Scenario.Operation> operations) {
        operations.put("bookie_hold", op -> {
            held.put(id(op), new Hold(numbers(op), op.get("mode").asText().equals("add")));
            return Call.done(null);
        });
        operations.put("bookie_release", op -> {
            held.clear();
            return takeOut(holds);
        });
        operations.put("bookie_fault", op -> {
            for (int number : numbers(op)) {
                breakOne(id(op), number, op.get("kind").asText());
            }
            return Call.done(null);
        });
        operations.put("bookie_faults_off", op -> {
            for (List<String> rules : faults.values()) {
                takeOut(rules);
            }
            return Call.done(null);
        });
        operations.put("bookie_stop", op -> {
            for (int number : op.has("index") ? numbers(op) : ensemble(op)) {
                scenario.served.stopBookie(number);
                stopped.add(number);
                scenario.awaitListed(named(number), false);
            }
            return Call.done(null);
        });
        operations.put("bookie_start", op -> {
            startAll();
            return Call.done(null);
        });
        operations.put("bookie_restart", op -> {
            scenario.served.restart();
            return Call.done(null);
        });
    }

    private void breakOne(long ledger, int number, String kind) throws Exception {
        String what = kind.substring(0, kind.indexOf('_'));
        List<String> rules = faults.computeIfAbsent(ledger + at(number) + what, first -> new ArrayList<>());
        takeOut(rules);
        for (String rule : FAULTS.get(kind)) {
            putIn(rules, String.format(rule, ledger, at(number)));
        }
    }

    /** Before an add, if the bookies hold what is added. What a recovery writes again they answer. */
    void holdIfHeld(LedgerHandle handle, long entry) throws Exception {
        Hold hold = held.get(handle.getId());
        if (hold == null) {
            return;
        }
        for (int number : hold.numbers()) {
            String kind = hold.before() ? "stall" : "stall+after";
            int times = number == ALL ? handle.getLedgerMetadata().getWriteQuorumSize() : 1;
            putIn(holds, String.format("%s@append(%d:%d)%s*%d", kind, handle.getId(), entry, at(number), times));
        }
    }

    /** Those that were stopped. */
    void startAll() throws Exception {
        for (int number : stopped) {
            scenario.served.startBookie(number);
            scenario.awaitListed(named(number), true);
        }
        stopped.clear();
    }

    private BookieId named(int number) {
        return BookieId.parse(scenario.served.bookies().get(number - 1).get("name").asText());
    }

    private static String at(int number) {
        return number == ALL ? "" : "@bookie" + number;
    }

    private long id(JsonNode op) {
        return scenario.names.id(op.get("ledger"));
    }

    /** Of the bookies that an operation is about. */
    private List<Integer> numbers(JsonNode op) throws Exception {
        if (!op.has("index")) {
            return List.of(ALL);
        }
        List<Integer> ensemble = ensemble(op);
        List<Integer> numbers = new ArrayList<>();
        JsonNode index = op.get("index");
        if (index.isArray()) {
            index.forEach(one -> numbers.add(ensemble.get(one.asInt())));
        } else {
            numbers.add(ensemble.get(index.asInt()));
        }
        return numbers;
    }

    /** The bookies of a ledger's newest ensemble, by the numbers that the server has for them. */
    private List<Integer> ensemble(JsonNode op) throws Exception {
        List<String> names = new ArrayList<>();
        scenario.served.bookies().forEach(bookie -> names.add(bookie.get("name").asText()));
        LedgerMetadata metadata = scenario.metadata(id(op));
        List<Integer> numbers = new ArrayList<>();
        for (BookieId bookie : metadata.getAllEnsembles().lastEntry().getValue()) {
            numbers.add(names.indexOf(bookie.getId()) + 1);
        }
        return numbers;
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
