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
    void linesAreReadInTheirOrder() throws Exception {
        try (BookKeeper client = SERVER.client()) {
            Journal journal = new Journal(client);
            journal.note("one");
            journal.note("two");
            assertEquals(List.of("one", "two"), Journal.recover(client, journal.id()));
            assertThrows(BKException.BKLedgerFencedException.class, () -> journal.note("too late"));
        }
    }

    /** The power goes while the 20th line is noted: before it is on the disk, and after, when nobody was told. */
    @ParameterizedTest
    @CsvSource({"append.before_store, 19", "append.stored, 20"})
    void whatWasNotedIsThereAfterAPowerCut(String point, int kept) throws Exception {
        List<String> noted = new ArrayList<>();
        Journal journal;
        try (BookKeeper client = SERVER.client()) {
            journal = new Journal(client);
            SERVER.cutPowerAt(point, 20);
            assertThrows(BKException.class, () -> {
                for (int i = 0; i < 100; i++) {
                    journal.note("line " + i);
                    noted.add("line " + i);
                }
            });
            assertEquals(BookstandServer.CRASHED, SERVER.awaitEnd());
            SERVER.start();
        }
        assertEquals(19, noted.size());
        try (BookKeeper client = SERVER.client()) {
            List<String> lines = Journal.recover(client, journal.id());
            assertEquals(noted, lines.subList(0, noted.size()));
            assertEquals(kept, lines.size());
        }
    }

    /** It goes at a moment that nobody has chosen. */
    @Test
    void whatWasNotedIsThereWheneverThePowerGoes() throws Exception {
        List<String> noted = new ArrayList<>();
        CountDownLatch some = new CountDownLatch(50);
        Journal journal;
        try (BookKeeper client = SERVER.client()) {
            journal = new Journal(client);
            Thread writer = new Thread(() -> {
                try {
                    while (true) {
                        String line = "line " + noted.size();
                        journal.note(line);
                        noted.add(line);
                        some.countDown();
                    }
                } catch (BKException | InterruptedException powerIsGone) {
                    // That is what the test is about.
                }
            });
            writer.start();
            some.await();
            SERVER.cutPower();
            assertEquals(BookstandServer.CRASHED, SERVER.awaitEnd());
            writer.join();
            SERVER.start();
        }
        assertTrue(noted.size() >= 50);
        try (BookKeeper client = SERVER.client()) {
            assertEquals(noted, Journal.recover(client, journal.id()).subList(0, noted.size()));
        }
    }
}
