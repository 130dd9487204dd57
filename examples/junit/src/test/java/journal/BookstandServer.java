package journal;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BookKeeper;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** Serves a store in a new folder, in a separate process, during the tests of a class. */
final class BookstandServer implements BeforeAllCallback, AfterAllCallback {

    /** Exit code of a server after a simulated power cut. */
    static final int CRASHED = 4;

    private static final String COMMAND = System.getProperty("bookstand", "bookstand");
    private static final int PATIENCE_SECONDS = 60;

    private final ObjectMapper json = new ObjectMapper();
    private final HttpClient http = HttpClient.newHttpClient();
    private Path folder;
    private Process process;
    private JsonNode addresses;

    @Override
    public void beforeAll(ExtensionContext context) throws IOException {
        folder = Files.createTempDirectory("bookstand");
        start();
    }

    @Override
    public void afterAll(ExtensionContext context) throws IOException, InterruptedException {
        process.destroy();
        awaitEnd();
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** Starts or restarts the server, which prints its addresses as one line of JSON. */
    void start() throws IOException {
        String store = folder.resolve("store").toString();
        process = new ProcessBuilder(
                        List.of(COMMAND, "serve", store, "--bookies", "1", "--zookeeper", "0", "--admin", "0", "--json"))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String line = process.inputReader().readLine();
        if (line == null) {
            throw new IOException("bookstand serve has not started");
        }
        addresses = json.readTree(line);
    }

    BookKeeper client() throws Exception {
        return new BookKeeper(addresses.get("zookeeper").asText());
    }

    /** Simulates a power cut. */
    void cutPower() throws IOException, InterruptedException {
        post("/crash", "{}");
    }

    /** Simulates a power cut when a failpoint is reached for the n-th time. docs/testing.md lists the failpoints. */
    void cutPowerAt(String point, int nth) throws IOException, InterruptedException {
        post("/crash", "{\"point\": \"%s\", \"nth\": %d}".formatted(point, nth));
    }

    /** Waits for the process, and returns its exit code. */
    int awaitEnd() throws InterruptedException {
        if (!process.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new IllegalStateException("bookstand serve has not exited");
        }
        return process.exitValue();
    }

    private void post(String path, String body) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(addresses.get("admin").asText() + path))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(answer.body());
        }
    }
}
