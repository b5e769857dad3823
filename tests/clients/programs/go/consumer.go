package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const largeBytes = 1000

// Consumer polls in a goroutine of its own and tells what it saw.
type Consumer struct {
	name   string
	client *kgo.Client
	cancel context.CancelFunc
	done   chan struct{}

	lock  sync.Mutex
	owned map[string]map[int32]bool
}

func startConsumer(seeds []string, r *Request) (*Consumer, error) {
	c := &Consumer{name: r.Consumer, done: make(chan struct{}), owned: map[string]map[int32]bool{}}
	reset := kgo.NewOffset().AtStart()
	if r.Reset == "latest" {
		reset = kgo.NewOffset().AtEnd()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(seeds...),
		kgo.ConsumeResetOffset(reset),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
	}
	if r.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if r.MaxBytes > 0 {
		options = append(options, kgo.FetchMaxPartitionBytes(r.MaxBytes))
	}
	if r.Partitions != nil {
		direct, err := directOffsets(r.Partitions)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.ConsumePartitions(direct))
	} else {
		options = append(options, c.groupOptions(r)...)
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.client, c.cancel = client, cancel
	go c.poll(ctx)
	return c, nil
}

func (c *Consumer) groupOptions(r *Request) []kgo.Opt {
	balancer := kgo.RangeBalancer()
	if r.Assignor == "cooperative-sticky" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(r.Group),
		kgo.ConsumeTopics(r.Topics...),
		kgo.Balancers(balancer),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(6 * time.Second),
		kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			c.change(added, true, "")
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			c.change(gone, false, "revoked")
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			c.change(gone, false, "lost")
		}),
	}
	if r.InstanceID != "" {
		options = append(options, kgo.InstanceID(r.InstanceID))
	}
	return options
}

func directOffsets(raw json.RawMessage) (map[string]map[int32]kgo.Offset, error) {
	var starts [][3]any
	if err := json.Unmarshal(raw, &starts); err != nil {
		return nil, err
	}
	direct := map[string]map[int32]kgo.Offset{}
	for _, start := range starts {
		topic, partition := start[0].(string), int32(start[1].(float64))
		if direct[topic] == nil {
			direct[topic] = map[int32]kgo.Offset{}
		}
		direct[topic][partition] = kgo.NewOffset().At(int64(start[2].(float64)))
	}
	return direct, nil
}

func (c *Consumer) change(partitions map[string][]int32, isAdded bool, event string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	changed := map[string]map[int32]bool{}
	for topic, numbers := range partitions {
		for _, number := range numbers {
			set(changed, topic, number, true)
			set(c.owned, topic, number, isAdded)
		}
	}
	if event != "" && len(changed) > 0 {
		emit(map[string]any{"consumer": c.name, "event": event, "partitions": pairs(changed)})
	}
	emit(map[string]any{"consumer": c.name, "event": "assignment", "partitions": pairs(c.owned)})
}

func set(partitions map[string]map[int32]bool, topic string, number int32, isIn bool) {
	if partitions[topic] == nil {
		partitions[topic] = map[int32]bool{}
	}
	partitions[topic][number] = isIn
}

func pairs(partitions map[string]map[int32]bool) [][]any {
	found := [][]any{}
	for topic, numbers := range partitions {
		for number, isIn := range numbers {
			if isIn {
				found = append(found, []any{topic, number})
			}
		}
	}
	sort.Slice(found, func(i, j int) bool {
		if found[i][0] != found[j][0] {
			return found[i][0].(string) < found[j][0].(string)
		}
		return found[i][1].(int32) < found[j][1].(int32)
	})
	return found
}

func (c *Consumer) poll(ctx context.Context) {
	defer close(c.done)
	for ctx.Err() == nil {
		fetches := c.client.PollFetches(ctx)
		fetches.EachError(func(_ string, _ int32, err error) {
			if ctx.Err() == nil {
				emit(map[string]any{"consumer": c.name, "event": "error", "message": err.Error()})
			}
		})
		var records []map[string]any
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, seen(record)) })
		if len(records) > 0 {
			emit(map[string]any{"consumer": c.name, "event": "records", "records": records})
		}
	}
}

func (c *Consumer) seek(topic string, partition int32, offset int64) {
	c.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{
		topic: {partition: {Epoch: -1, Offset: offset}},
	})
}

func (c *Consumer) close() {
	c.cancel()
	<-c.done
	c.client.Close()
}

func seen(record *kgo.Record) map[string]any {
	told := map[string]any{
		"topic":     record.Topic,
		"partition": record.Partition,
		"offset":    record.Offset,
		"timestamp": record.Timestamp.UnixMilli(),
		"key":       textOf(record.Key),
		"value":     textOf(record.Value),
		"size":      len(record.Value),
	}
	if record.Value == nil {
		told["size"] = -1
	}
	if len(record.Value) > largeBytes {
		digest := sha256.Sum256(record.Value)
		told["sha256"] = hex.EncodeToString(digest[:])
		told["value"] = textOf(record.Value[:largeBytes])
	}
	headers := [][2]*string{}
	for _, header := range record.Headers {
		headers = append(headers, [2]*string{&header.Key, textOf(header.Value)})
	}
	told["headers"] = headers
	return told
}
