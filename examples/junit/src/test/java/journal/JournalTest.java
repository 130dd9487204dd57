package journal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class JournalTest {

    @RegisterExtension
    static final BookstandServer SERVER = new BookstandServer();

    @Test
    void linesAreReadInOrder() throws Exception {
        try (BookKeeper client = SERVER.client()) {
            Journal journal = new Journal(client);
            journal.append("one");
            journal.append("two");
            assertEquals(List.of("one", "two"), Journal.recover(client, journal.id()));
            assertThrows(BKException.BKLedgerFencedException.class, () -> journal.append("too late"));
        }
    }

    /** Cuts the power during the 20th append: before the line is durable, and after that but before the response. */
    @ParameterizedTest
    @CsvSource({"append.before_store, 19", "append.stored, 20"})
    void appendedLinesSurvivePowerCut(String point, int kept) throws Exception {
        List<String> appended = new ArrayList<>();
        Journal journal;
        try (BookKeeper client = SERVER.client()) {
            journal = new Journal(client);
            SERVER.cutPowerAt(point, 20);
            assertThrows(BKException.class, () -> {
                for (int i = 0; i < 100; i++) {
                    journal.append("line " + i);
                    appended.add("line " + i);
                }
            });
            assertEquals(BookstandServer.CRASHED, SERVER.awaitEnd());
            SERVER.start();
        }
        assertEquals(19, appended.size());
        try (BookKeeper client = SERVER.client()) {
            List<String> lines = Journal.recover(client, journal.id());
            assertEquals(appended, lines.subList(0, appended.size()));
            assertEquals(kept, lines.size());
        }
    }

    /** Cuts the power at an arbitrary time. */
    @Test
    void appendedLinesSurvivePowerCutAtAnyTime() throws Exception {
        List<String> appended = new ArrayList<>();
        CountDownLatch some = new CountDownLatch(50);
        Journal journal;
        try (BookKeeper client = SERVER.client()) {
            journal = new Journal(client);
            Thread writer = new Thread(() -> {
                try {
                    while (true) {
                        String line = "line " + appended.size();
                        journal.append(line);
                        appended.add(line);
                        some.countDown();
                    }
                } catch (BKException | InterruptedException powerIsGone) {
                    // Expected.
                }
            });
            writer.start();
            some.await();
            SERVER.cutPower();
            assertEquals(BookstandServer.CRASHED, SERVER.awaitEnd());
            writer.join();
            SERVER.start();
        }
        assertTrue(appended.size() >= 50);
        try (BookKeeper client = SERVER.client()) {
            assertEquals(appended, Journal.recover(client, journal.id()).subList(0, appended.size()));
        }
    }
}
