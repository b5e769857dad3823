package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"

	"github.com/twmb/franz-go/pkg/kadm"
)

func (p *Program) administer(ctx context.Context, r *Request) (any, error) {
	switch r.Op {
	case "create_topic", "delete_topic", "list_topics", "partitions", "create_partitions",
		"describe_configs", "describe_broker", "alter_config":
		return p.administerTopics(ctx, r)
	case "list_groups", "describe_group", "delete_group", "delete_offsets", "group_offsets",
		"set_offset":
		return p.administerGroups(ctx, r)
	case "delete_records":
		wish := kadm.Offsets{}
		wish.AddOffset(r.Topic, r.Partition, r.Before, -1)
		deleted, err := p.admin.DeleteRecords(ctx, wish)
		if err != nil {
			return nil, err
		}
		one, _ := deleted.Lookup(r.Topic, r.Partition)
		return one.LowWatermark, one.Err
	case "describe_log_dirs":
		return p.logDirs(ctx, r.Topic)
	case "offsets":
		earliest, err := p.offset(p.admin.ListStartOffsets(ctx, r.Topic))(r)
		if err != nil {
			return nil, err
		}
		latest, err := p.offset(p.admin.ListEndOffsets(ctx, r.Topic))(r)
		return map[string]int64{"earliest": earliest, "latest": latest}, err
	case "offset_for_time":
		// kadm answers with the end of the log when nothing is at or after the time, and says so
		// by a timestamp of -1.
		found, err := p.admin.ListOffsetsAfterMilli(ctx, r.Timestamp, r.Topic)
		if err != nil {
			return nil, err
		}
		one, _ := found.Lookup(r.Topic, r.Partition)
		if one.Err == nil && one.Timestamp == -1 {
			return nil, nil
		}
		return one.Offset, one.Err
	case "offset_of_max_timestamp":
		return p.offset(p.admin.ListMaxTimestampOffsets(ctx, r.Topic))(r)
	case "describe_cluster":
		found, err := p.admin.BrokerMetadata(ctx)
		brokers := []string{}
		for _, broker := range found.Brokers {
			brokers = append(brokers, fmt.Sprintf("%s:%d", broker.Host, broker.Port))
		}
		return map[string]any{"cluster_id": found.Cluster, "brokers": brokers, "ids": found.Brokers.NodeIDs()}, err
	}
	return nil, fmt.Errorf("unknown op %q", r.Op)
}

func (p *Program) offset(found kadm.ListedOffsets, err error) func(*Request) (int64, error) {
	return func(r *Request) (int64, error) {
		if err != nil {
			return 0, err
		}
		one, _ := found.Lookup(r.Topic, r.Partition)
		return one.Offset, one.Err
	}
}

func (p *Program) administerTopics(ctx context.Context, r *Request) (any, error) {
	count := int32(-1)
	if r.Partitions != nil {
		if err := json.Unmarshal(r.Partitions, &count); err != nil {
			return nil, err
		}
	}
	switch r.Op {
	case "create_topic":
		configs := map[string]*string{}
		for name, value := range r.Configs {
			configs[name] = &value
		}
		_, err := p.admin.CreateTopic(ctx, count, -1, configs, r.Topic)
		return nil, err
	case "delete_topic":
		_, err := p.admin.DeleteTopic(ctx, r.Topic)
		return nil, err
	case "list_topics":
		topics, err := p.admin.ListTopicsWithInternal(ctx)
		return topics.Names(), err
	case "partitions":
		topics, err := p.admin.ListTopics(ctx, r.Topic)
		return len(topics[r.Topic].Partitions), err
	case "create_partitions":
		made, err := p.admin.UpdatePartitions(ctx, int(count), r.Topic)
		if err != nil {
			return nil, err
		}
		return nil, made[r.Topic].Err
	case "describe_configs":
		return values(p.admin.DescribeTopicConfigs(ctx, r.Topic))
	case "describe_broker":
		return values(p.admin.DescribeBrokerConfigs(ctx, r.Broker))
	default: // alter_config
		set := kadm.AlterConfig{Op: kadm.SetConfig, Name: r.Name, Value: &r.Value}
		altered, err := p.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{set}, r.Topic)
		if err != nil {
			return nil, err
		}
		return nil, altered[0].Err
	}
}

func values(found kadm.ResourceConfigs, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	values := map[string]*string{}
	for _, config := range found[0].Configs {
		values[config.Key] = config.Value
	}
	return values, found[0].Err
}

func (p *Program) administerGroups(ctx context.Context, r *Request) (any, error) {
	switch r.Op {
	case "list_groups":
		groups, err := p.admin.ListGroups(ctx)
		return groups.Groups(), err
	case "describe_group":
		found, err := p.admin.DescribeGroups(ctx, r.Group)
		if err != nil {
			return nil, err
		}
		group := found[r.Group]
		members := [][][]any{}
		for _, member := range group.Members {
			members = append(members, assigned(member))
		}
		return map[string]any{"state": group.State, "members": members}, group.Err
	case "delete_group":
		_, err := p.admin.DeleteGroup(ctx, r.Group)
		return nil, err
	case "delete_offsets":
		var wish kadm.TopicsSet
		wish.Add(r.Topic, r.Partition)
		deleted, err := p.admin.DeleteOffsets(ctx, r.Group, wish)
		if err != nil {
			return nil, err
		}
		failure, _ := deleted.Lookup(r.Topic, r.Partition)
		return nil, failure
	case "set_offset":
		wish := kadm.Offsets{}
		wish.AddOffset(r.Topic, r.Partition, r.Offset, -1)
		return nil, p.admin.CommitAllOffsets(ctx, r.Group, wish)
	default: // group_offsets
		found, err := p.admin.FetchOffsets(ctx, r.Group)
		if err != nil {
			return nil, err
		}
		offsets := [][]any{}
		for _, one := range found.Sorted() {
			offsets = append(offsets, []any{one.Topic, one.Partition, one.At})
		}
		return offsets, nil
	}
}

func assigned(member kadm.DescribedGroupMember) [][]any {
	found := [][]any{}
	if assignment, isConsumer := member.Assigned.AsConsumer(); isConsumer {
		for _, topic := range assignment.Topics {
			for _, partition := range topic.Partitions {
				found = append(found, []any{topic.Topic, partition})
			}
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i][1].(int32) < found[j][1].(int32) })
	return found
}

func (p *Program) logDirs(ctx context.Context, topic string) (any, error) {
	found, err := p.admin.DescribeAllLogDirs(ctx, nil)
	sizes := map[string]int64{}
	found.Each(func(dir kadm.DescribedLogDir) {
		for partition, described := range dir.Topics[topic] {
			sizes[fmt.Sprint(partition)] = described.Size
		}
	})
	return sizes, err
}
