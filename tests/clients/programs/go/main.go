// franz-go behind the common protocol: JSON lines in, JSON lines out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const timeout = 30 * time.Second

// Request holds the arguments of every op; each op reads its own.
type Request struct {
	ID         int               `json:"id"`
	Op         string            `json:"op"`
	Topic      string            `json:"topic"`
	Topics     []string          `json:"topics"`
	Group      string            `json:"group"`
	Partition  int32             `json:"partition"`
	Partitions json.RawMessage   `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	Name       string            `json:"name"`
	Value      string            `json:"value"`
	Before     int64             `json:"before"`
	Broker     int32             `json:"broker"`
	Offset     int64             `json:"offset"`
	Timestamp  int64             `json:"timestamp"`

	Acks        string   `json:"acks"`
	Compression string   `json:"compression"`
	Idempotent  bool     `json:"idempotent"`
	MaxBytes    int32    `json:"max_bytes"`
	Records     []Record `json:"records"`

	Consumer   string `json:"consumer"`
	Assignor   string `json:"assignor"`
	InstanceID string `json:"instance_id"`
	Reset      string `json:"reset"`
	Isolation  string `json:"isolation"`

	To              string `json:"to"`
	TransactionalID string `json:"transactional_id"`
	Each            int    `json:"each"`
	AbortEvery      int    `json:"abort_every"`
	TimeoutMs       int    `json:"timeout_ms"`
}

// Record is one message to send.
type Record struct {
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Pad       int          `json:"pad"`
	Headers   [][2]*string `json:"headers"`
	Partition *int32       `json:"partition"`
	Timestamp *int64       `json:"timestamp"`
}

// Program owns the admin client and the running consumers.
type Program struct {
	seeds     []string
	admin     *kadm.Client
	consumers map[string]*Consumer
	copying   *Copying
}

var out sync.Mutex

func emit(message map[string]any) {
	line, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(line))
}

func main() {
	seeds := strings.Split(os.Args[1], ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		panic(err)
	}
	program := &Program{seeds, kadm.NewClient(client), map[string]*Consumer{}, nil}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var request Request
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			panic(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		result, err := program.answer(ctx, &request)
		cancel()
		if err != nil {
			told := map[string]any{"code": codeOf(err), "message": err.Error()}
			emit(map[string]any{"id": request.ID, "error": told})
			continue
		}
		emit(map[string]any{"id": request.ID, "ok": result})
	}
}

// codeOf is Kafka's code of an error, or nil when the error did not come from a broker.
func codeOf(err error) any {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return nil
}

func (p *Program) answer(ctx context.Context, r *Request) (any, error) {
	switch r.Op {
	case "produce":
		return p.produce(ctx, r)
	case "consume":
		consumer, err := startConsumer(p.seeds, r)
		p.consumers[r.Consumer] = consumer
		return nil, err
	case "copy":
		p.copying = startCopying(p.seeds, p.admin, r)
		return nil, nil
	case "copied":
		return p.copying.status(), nil
	case "seek":
		p.consumers[r.Consumer].seek(r.Topic, r.Partition, r.Offset)
		return nil, nil
	case "commit":
		return nil, p.consumers[r.Consumer].client.CommitUncommittedOffsets(ctx)
	case "close":
		p.consumers[r.Consumer].close()
		delete(p.consumers, r.Consumer)
		return nil, nil
	}
	return p.administer(ctx, r)
}

func (p *Program) produce(ctx context.Context, r *Request) (any, error) {
	codecs := map[string]kgo.CompressionCodec{
		"": kgo.NoCompression(), "none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{
		"": kgo.AllISRAcks(), "all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck(),
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(p.seeds...),
		kgo.RequiredAcks(acks[r.Acks]),
		kgo.ProducerBatchCompression(codecs[r.Compression]),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if !r.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	if r.MaxBytes > 0 {
		options = append(options, kgo.ProducerBatchMaxBytes(r.MaxBytes))
	}
	if r.Records[0].Partition != nil {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	results := make([]map[string]any, len(r.Records))
	var failure error
	var lock sync.Mutex
	for i, wish := range r.Records {
		client.Produce(ctx, wish.toSend(r.Topic), func(sent *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			code := codeOf(err)
			switch {
			case err == nil:
				results[i] = map[string]any{"partition": sent.Partition, "offset": sent.Offset}
			case code != nil:
				results[i] = map[string]any{"error": code}
			default:
				failure = err
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return nil, err
	}
	return results, failure
}

func (r *Record) toSend(topic string) *kgo.Record {
	record := &kgo.Record{Topic: topic, Key: bytesOf(r.Key), Value: bytesOf(r.Value)}
	if r.Pad > 0 {
		record.Value = append(record.Value, strings.Repeat("x", r.Pad)...)
	}
	for _, header := range r.Headers {
		value := bytesOf(header[1])
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: *header[0], Value: value})
	}
	if r.Partition != nil {
		record.Partition = *r.Partition
	}
	if r.Timestamp != nil {
		record.Timestamp = time.UnixMilli(*r.Timestamp)
	}
	return record
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func textOf(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}
