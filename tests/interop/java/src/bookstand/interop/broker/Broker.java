package bookstand.interop.broker;

import bookstand.interop.Lines;
import bookstand.interop.Served;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.pulsar.PulsarClusterMetadataSetup;
import org.apache.pulsar.PulsarStandaloneStarter;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.common.configuration.PulsarConfigurationLoader;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.util.ObjectMapperFactory;

/** A broker on a store that another process serves, with what its clients and its operator do. */
public final class Broker {

    private static final int KEEP_EVERYTHING = -1;
    private static final int AT_ONCE = 0;
    private static final int QUIET_MILLIS = 500;
    private static final Set<String> ENDING = Set.of("stop", "end");

    private Served served;
    private AutoCloseable closing;
    private PulsarAdmin admin;
    private Clients clients;
    private boolean failed;

    public static void main(String[] args) throws Exception {
        Broker here = new Broker();
        Map<String, Lines.Question> questions = new TreeMap<>(Map.of(
                "serve", here::serve,
                "kill", here::kill,
                "initialize", here::initialize,
                "start", here::start,
                "stop", here::stop,
                "end", here::end,
                "namespace", here::namespace,
                "unload", here::unload,
                "delete", here::delete,
                "stats", here::stats));
        questions.put("standalone", here::standalone);
        questions.putAll(Map.of(
                "send", (request, answer) -> here.clients.send(request),
                "confirmed", (request, answer) -> here.clients.confirmed(request, answer),
                "subscribe", (request, answer) -> here.clients.subscribe(request),
                "receive", (request, answer) -> here.clients.receive(request, answer),
                "ack", (request, answer) -> here.clients.acknowledge(request),
                "nack", (request, answer) -> here.clients.refuse(request),
                "work", (request, answer) -> here.clients.work(request),
                "worked", (request, answer) -> here.clients.worked(request, answer),
                "leave", (request, answer) -> here.clients.leave(request)));
        questions.replaceAll((name, question) -> ENDING.contains(name) ? question : here.unlessFailed(question));
        Lines.answer(args, questions);
        // Whatever has failed, no process is left, and no thread of the broker's keeps the program from ending.
        if (here.served != null) {
            here.served.kill();
        }
        System.exit(0);
    }

    /** Nothing is tried, and waited for, once something could not be done. */
    private Lines.Question unlessFailed(Lines.Question question) {
        return (request, answer) -> {
            if (failed) {
                throw new IllegalStateException("not tried, for something before it has failed");
            }
            failed = true;
            question.answer(request, answer);
            failed = false;
        };
    }

    // -- processes -------------------------------------------------------------------------------------------------

    private void serve(Map<String, String> request, Map<String, String> answer) throws IOException {
        served = new Served(request.get("command"));
        answer.put("uri", served.uri());
    }

    /** The server dies in the middle of whatever it does, and is copied as it was left. */
    private void kill(Map<String, String> request, Map<String, String> answer) throws Exception {
        if (request.get("how").equals("signal")) {
            served.kill();
        } else {
            served.crash();
        }
        for (String copy : request.get("copies").split(",")) {
            copy(Path.of(request.get("store")), Path.of(copy));
        }
    }

    private static void copy(Path from, Path to) throws IOException {
        Files.createDirectories(to);
        try (Stream<Path> files = Files.list(from)) {
            for (Path file : files.toList()) {
                Files.copy(file, to.resolve(file.getFileName()));
            }
        }
    }

    private void end(Map<String, String> request, Map<String, String> answer) throws Exception {
        answer.put("exit", String.valueOf(served.stop()));
    }

    /** The originals' tool for a new cluster. */
    private void initialize(Map<String, String> request, Map<String, String> answer) throws Exception {
        PulsarClusterMetadataSetup.main(request.get("arguments").split(" "));
    }

    private void start(Map<String, String> request, Map<String, String> answer) throws Exception {
        PulsarService broker = new PulsarService(
                PulsarConfigurationLoader.create(request.get("settings"), ServiceConfiguration.class));
        broker.start();
        reached(broker.getSafeWebServiceAddress(), broker.getBrokerServiceUrl());
        closing = broker;
    }

    private void standalone(Map<String, String> request, Map<String, String> answer) throws Exception {
        String arguments = request.get("arguments") + " --config " + request.get("settings");
        PulsarStandaloneStarter broker = new PulsarStandaloneStarter(arguments.split(" "));
        broker.start();
        reached(broker.getWebServiceUrl(), broker.getBrokerServiceUrl());
        closing = broker::close;
    }

    private void reached(String web, String url) throws PulsarClientException {
        admin = PulsarAdmin.builder().serviceHttpUrl(web).build();
        clients = new Clients(PulsarClient.builder().serviceUrl(url).build());
    }

    private void stop(Map<String, String> request, Map<String, String> answer) throws Exception {
        clients.close();
        admin.close();
        closing.close();
    }

    // -- what an operator does -------------------------------------------------------------------------------------

    private void namespace(Map<String, String> request, Map<String, String> answer) throws Exception {
        String name = request.get("name");
        String tenant = name.split("/")[0];
        if (!admin.tenants().getTenants().contains(tenant)) {
            admin.tenants().createTenant(tenant,
                    TenantInfo.builder().allowedClusters(Set.copyOf(admin.clusters().getClusters())).build());
        }
        admin.namespaces().createNamespace(name);
        int kept = Boolean.parseBoolean(request.get("kept")) ? KEEP_EVERYTHING : AT_ONCE;
        admin.namespaces().setRetention(name, new RetentionPolicies(kept, kept));
    }

    private void unload(Map<String, String> request, Map<String, String> answer) throws Exception {
        awaitCursors(request.get("topic"));
        admin.topics().unload(request.get("topic"));
    }

    /**
     * Until no cursor's first ledger is being made: what is acknowledged meanwhile is forgotten by a broker that unloads
     * the topic then.
     */
    private void awaitCursors(String topic) throws Exception {
        Patience.await(() -> admin.topics().getInternalStats(topic).cursors.values().stream()
                .noneMatch(cursor -> cursor.state.equals("SwitchingLedger")), 1, () -> topic + ": a cursor has no ledger");
    }

    private void delete(Map<String, String> request, Map<String, String> answer) throws Exception {
        if (request.containsKey("subscription")) {
            admin.topics().deleteSubscription(request.get("topic"), request.get("subscription"));
        } else {
            admin.topics().delete(request.get("topic"));
        }
    }

    private void stats(Map<String, String> request, Map<String, String> answer) throws Exception {
        String topic = request.get("topic");
        awaitDelayed(topic, request.getOrDefault("delayed", ""));
        var json = ObjectMapperFactory.getMapper().writer();
        answer.put("stats", json.writeValueAsString(admin.topics().getStats(topic, true)));
        answer.put("internal", json.writeValueAsString(admin.topics().getInternalStats(topic)));
    }

    /** Until dispatchers know of so many delayed messages, given as {@code subscription:count}, and of no more to come. */
    private void awaitDelayed(String topic, String expected) throws Exception {
        for (String one : expected.isEmpty() ? new String[0] : expected.split(",")) {
            String[] words = one.split(":");
            long least = Long.parseLong(words[1]);
            AtomicLong known = new AtomicLong(-1);
            Patience.await(() -> {
                long now = admin.topics().getStats(topic).getSubscriptions().get(words[0]).getMsgDelayed();
                return known.getAndSet(now) == now && now >= least;
            }, QUIET_MILLIS, () -> topic + ": " + known + " delayed for " + one);
        }
    }
}
