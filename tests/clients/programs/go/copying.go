package main

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Copying copies a topic, each message once: some at a time in a transaction, with the positions.
type Copying struct {
	seeds []string
	admin *kadm.Client
	wish  *Request

	lock      sync.Mutex
	done      bool
	committed int
	aborted   int
	trouble   *string
}

func startCopying(seeds []string, admin *kadm.Client, r *Request) *Copying {
	c := &Copying{seeds: seeds, admin: admin, wish: r}
	go func() {
		for {
			isAtEnd, err := c.session()
			c.lock.Lock()
			c.done = isAtEnd && err == nil
			if err != nil {
				text := err.Error()
				c.trouble = &text
			}
			isDone := c.done
			c.lock.Unlock()
			if isDone {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return c
}

func (c *Copying) status() map[string]any {
	c.lock.Lock()
	defer c.lock.Unlock()
	return map[string]any{
		"done": c.done, "committed": c.committed, "aborted": c.aborted, "trouble": c.trouble,
	}
}

func (c *Copying) isToAbort() bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.wish.AbortEvery > 0 && (c.committed+c.aborted+1)%c.wish.AbortEvery == 0
}

func (c *Copying) count(isCommitted bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if isCommitted {
		c.committed++
	} else {
		c.aborted++
	}
}

// session copies until it has trouble; whether the end of the topic is reached.
func (c *Copying) session() (bool, error) {
	timeoutMs := c.wish.TimeoutMs
	if timeoutMs == 0 {
		timeoutMs = 60_000
	}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(c.seeds...),
		kgo.TransactionalID(c.wish.TransactionalID),
		kgo.TransactionTimeout(time.Duration(timeoutMs)*time.Millisecond),
		kgo.DefaultProduceTopic(c.wish.To),
		kgo.ConsumerGroup(c.wish.Group),
		kgo.ConsumeTopics(c.wish.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	if err != nil {
		return false, err
	}
	defer session.Close()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := session.PollRecords(ctx, max(1, c.wish.Each))
		cancel()
		records := fetches.Records()
		if len(records) == 0 {
			isAtEnd, err := c.isAtEnd()
			if err == nil && isAtEnd {
				return true, nil
			}
			continue
		}
		if err := c.copy(session, records); err != nil {
			return false, err
		}
	}
}

func (c *Copying) copy(session *kgo.GroupTransactSession, records []*kgo.Record) error {
	if err := session.Begin(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	failure := kgo.AbortingFirstErrPromise(session.Client())
	for _, record := range records {
		session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, failure.Promise())
	}
	isGood := failure.Err() == nil && !c.isToAbort()
	isCommitted, err := session.End(ctx, kgo.TransactionEndTry(isGood))
	if err != nil {
		return err
	}
	c.count(isCommitted)
	return nil
}

func (c *Copying) isAtEnd() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ends, err := c.admin.ListEndOffsets(ctx, c.wish.Topic)
	if err != nil {
		return false, err
	}
	positions, err := c.admin.FetchOffsets(ctx, c.wish.Group)
	if err != nil {
		return false, err
	}
	isAtEnd := len(ends) > 0
	ends.Each(func(end kadm.ListedOffset) {
		position, isKnown := positions.Lookup(end.Topic, end.Partition)
		at := int64(0)
		if isKnown {
			at = position.At
		}
		isAtEnd = isAtEnd && end.Err == nil && at == end.Offset
	})
	return isAtEnd, nil
}
