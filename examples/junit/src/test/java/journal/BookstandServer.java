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

/** A store in a new folder, served by a process of its own while the tests of a class run. */
final class BookstandServer implements BeforeAllCallback, AfterAllCallback {

    /** What a server ends with when its power was cut. */
    static final int CRASHED = 4;

    private static final String COMMAND = System.getProperty("bookstand", "bookstand");
    private static final int PATIENCE_SECONDS = 60;

    private final ObjectMapper json = new ObjectMapper();
    private final HttpClient http = HttpClient.newHttpClient();
    private Path folder;
    private Process process;
    private JsonNode told;

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

    /** Begin, or begin again with what is in the store. It says on one line of JSON where it is. */
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
        told = json.readTree(line);
    }

    BookKeeper client() throws Exception {
        return new BookKeeper(told.get("zookeeper").asText());
    }

    /** As if the machine had lost its power. */
    void cutPower() throws IOException, InterruptedException {
        post("/crash", "{}");
    }

    /** The same where a point is passed for the n-th time: docs/testing.md lists them. */
    void cutPowerAt(String point, int nth) throws IOException, InterruptedException {
        post("/crash", "{\"point\": \"%s\", \"nth\": %d}".formatted(point, nth));
    }

    /** The exit code of the process. */
    int awaitEnd() throws InterruptedException {
        if (!process.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new IllegalStateException("bookstand serve does not end");
        }
        return process.exitValue();
    }

    private void post(String path, String body) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(told.get("admin").asText() + path))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(answer.body());
        }
    }
}
