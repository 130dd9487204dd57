package bookstand.interop.pulsar;

import static bookstand.interop.Lines.bytes;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.ArgumentMatchers.anyBoolean;
import static org.mockito.ArgumentMatchers.anyInt;
import static org.mockito.ArgumentMatchers.anyLong;
import static org.mockito.Mockito.doAnswer;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;
import static org.mockito.Mockito.withSettings;

import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.AsyncCallback.CloseCallback;
import org.apache.bookkeeper.client.AsyncCallback.CreateCallback;
import org.apache.bookkeeper.client.AsyncCallback.DeleteCallback;
import org.apache.bookkeeper.client.AsyncCallback.OpenCallback;
import org.apache.bookkeeper.client.AsyncCallback.ReadCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.mledger.AsyncCallbacks.OpenLedgerCallback;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.ManagedLedgerFactory;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * The original's topics over ledgers that a request brings along. In BookKeeper's place is what gives their entries,
 * and forgets what is added.
 */
final class Topics {

    private static final String ROOT = "/managed-ledgers/";
    private static final long PATIENCE = 60;

    private static final Map<Long, LedgerHandle> LEDGERS = new HashMap<>();
    private static final AtomicLong NEW_LEDGERS = new AtomicLong(1L << 40);
    private static MetadataStoreExtended metadata;
    private static ManagedLedgerFactory factory;

    private Topics() {
    }

    static synchronized ManagedLedger open(Map<String, String> request, ManagedLedgerConfig config) throws Exception {
        if (factory == null) {
            metadata = MetadataStoreExtended.create("memory:interop", MetadataStoreConfig.builder().build());
            factory = new ManagedLedgerFactoryImpl(metadata, bookKeeper());
        }
        String topic = request.get("topic_node");
        metadata.put(topic, bytes(request.get("topic")), Optional.empty()).get();
        metadata.put(request.get("cursor_node"), bytes(request.get("cursor")), Optional.empty()).get();
        String[] last = request.get("last_ledger").split(":");
        LEDGERS.put(Long.valueOf(last[0]), ledger(Long.parseLong(last[0]), Long.parseLong(last[1]), List.of()));
        if (request.containsKey("entries")) {
            long id = Long.parseLong(request.get("cursor_ledger"));
            List<String> entries = List.of(request.get("entries").split(","));
            LEDGERS.put(id, ledger(id, entries.size(), entries));
        }
        return open(topic.substring(ROOT.length()), config).get(PATIENCE, TimeUnit.SECONDS);
    }

    private static CompletableFuture<ManagedLedger> open(String name, ManagedLedgerConfig config) {
        CompletableFuture<ManagedLedger> opened = new CompletableFuture<>();
        factory.asyncOpen(name, config, new OpenLedgerCallback() {
            @Override
            public void openLedgerComplete(ManagedLedger topic, Object ctx) {
                opened.complete(topic);
            }

            @Override
            public void openLedgerFailed(ManagedLedgerException exception, Object ctx) {
                opened.completeExceptionally(exception);
            }
        }, null, null);
        return opened;
    }

    private static BookKeeper bookKeeper() {
        BookKeeper client = mock(BookKeeper.class, withSettings().stubOnly());
        OrderedExecutor workers = OrderedExecutor.newBuilder().name("worker").numThreads(2).build();
        when(client.getMainWorkerPool()).thenReturn(workers);
        doAnswer(call -> {
            LedgerHandle ledger = LEDGERS.get(call.<Long>getArgument(0));
            int code = ledger == null ? BKException.Code.NoSuchLedgerExistsOnMetadataServerException : BKException.Code.OK;
            call.<OpenCallback>getArgument(3).openComplete(code, ledger, call.getArgument(4));
            return null;
        }).when(client).asyncOpenLedger(anyLong(), any(), any(), any(), any(), anyBoolean());
        doAnswer(call -> {
            LedgerHandle ledger = ledger(NEW_LEDGERS.incrementAndGet(), 0, List.of());
            call.<CreateCallback>getArgument(5).createComplete(BKException.Code.OK, ledger, call.getArgument(6));
            return null;
        }).when(client).asyncCreateLedger(anyInt(), anyInt(), anyInt(), any(), any(), any(), any(), any());
        doAnswer(call -> {
            call.<DeleteCallback>getArgument(1).deleteComplete(BKException.Code.OK, call.getArgument(2));
            return null;
        }).when(client).asyncDeleteLedger(anyLong(), any(), any());
        return client;
    }

    private static LedgerHandle ledger(long id, long count, List<String> entries) {
        LedgerHandle ledger = mock(LedgerHandle.class, withSettings().stubOnly());
        when(ledger.getId()).thenReturn(id);
        when(ledger.getLastAddConfirmed()).thenReturn(count - 1);
        doAnswer(call -> {
            LedgerEntry entry = mock(LedgerEntry.class, withSettings().stubOnly());
            when(entry.getEntry()).thenReturn(bytes(entries.get(call.<Long>getArgument(0).intValue())));
            call.<ReadCallback>getArgument(2).readComplete(BKException.Code.OK, ledger,
                    Collections.enumeration(List.of(entry)), call.getArgument(3));
            return null;
        }).when(ledger).asyncReadEntries(anyLong(), anyLong(), any(), any());
        AtomicLong added = new AtomicLong(count);
        doAnswer(call -> {
            call.<AddCallback>getArgument(1).addComplete(BKException.Code.OK, ledger, added.getAndIncrement(),
                    call.getArgument(2));
            return null;
        }).when(ledger).asyncAddEntry(any(byte[].class), any(), any());
        doAnswer(call -> {
            call.<CloseCallback>getArgument(0).closeComplete(BKException.Code.OK, ledger, call.getArgument(1));
            return null;
        }).when(ledger).asyncClose(any(), any());
        return ledger;
    }
}
