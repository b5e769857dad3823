import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The admin half of the protocol. */
final class Administration {
    private final Admin admin;

    Administration(Admin admin) {
        this.admin = admin;
    }

    Object answer(JsonNode request) throws Exception {
        String topic = Json.text(request, "topic", null);
        String group = Json.text(request, "group", null);
        switch (request.get("op").asText()) {
            case "create_topic":
                return createTopic(topic, request);
            case "delete_topic":
                return get(admin.deleteTopics(List.of(topic)).all());
            case "list_topics":
                return List.copyOf(get(admin.listTopics().names()));
            case "partitions":
                return get(admin.describeTopics(List.of(topic)).allTopicNames())
                        .get(topic).partitions().size();
            case "create_partitions":
                NewPartitions more = NewPartitions.increaseTo(request.get("partitions").asInt());
                return get(admin.createPartitions(Map.of(topic, more)).all());
            case "describe_configs":
                return describeConfigs(resource(topic));
            case "describe_broker":
                String broker = request.get("broker").asText();
                return describeConfigs(new ConfigResource(ConfigResource.Type.BROKER, broker));
            case "alter_config":
                return alterConfig(resource(topic), request);
            case "delete_records":
                return get(admin.deleteRecords(Map.of(
                                partition(request),
                                RecordsToDelete.beforeOffset(request.get("before").asLong())))
                        .lowWatermarks().get(partition(request))).lowWatermark();
            case "list_groups":
                return get(admin.listConsumerGroups().all()).stream()
                        .map(found -> found.groupId()).toList();
            case "describe_group":
                return describeGroup(group);
            case "delete_group":
                return get(admin.deleteConsumerGroups(List.of(group)).all());
            case "delete_offsets":
                return get(admin.deleteConsumerGroupOffsets(group, Set.of(partition(request))).all());
            case "set_offset":
                OffsetAndMetadata offset = new OffsetAndMetadata(request.get("offset").asLong());
                return get(admin.alterConsumerGroupOffsets(group, Map.of(partition(request), offset))
                        .all());
            case "group_offsets":
                return groupOffsets(group);
            case "describe_log_dirs":
                return logDirs(topic);
            case "offsets":
                return Map.of(
                        "earliest", offset(request, OffsetSpec.earliest()),
                        "latest", offset(request, OffsetSpec.latest()));
            case "offset_for_time":
                long timestamp = request.get("timestamp").asLong();
                long found = offset(request, OffsetSpec.forTimestamp(timestamp));
                return found >= 0 ? found : null;
            case "offset_of_max_timestamp":
                return offset(request, OffsetSpec.maxTimestamp());
            case "describe_cluster":
                return describeCluster();
            case "describe_features":
                return describeFeatures();
            case "describe_quorum":
                return describeQuorum();
            default:
                throw new IllegalArgumentException("unknown op " + request.get("op"));
        }
    }

    /** What kafka-metadata-quorum describes. */
    private Object describeQuorum() throws Exception {
        QuorumInfo found = get(admin.describeMetadataQuorum().quorumInfo());
        Map<String, Object> endpoints = new HashMap<>();
        found.nodes().forEach((id, node) -> endpoints.put(
                id.toString(),
                node.endpoints().stream().map(point -> point.host() + ":" + point.port()).toList()));
        return Map.of(
                "leader", found.leaderId(),
                "epoch", found.leaderEpoch(),
                "high_watermark", found.highWatermark(),
                "voters", found.voters().stream().map(Administration::replica).toList(),
                "observers", found.observers().stream().map(Administration::replica).toList(),
                "endpoints", endpoints);
    }

    private static Map<String, Object> replica(QuorumInfo.ReplicaState replica) {
        return Map.of(
                "id", replica.replicaId(),
                "directory", replica.replicaDirectoryId().toString(),
                "end_offset", replica.logEndOffset(),
                "fetched_ms", replica.lastFetchTimestamp().orElse(-1),
                "caught_up_ms", replica.lastCaughtUpTimestamp().orElse(-1));
    }

    private Object describeFeatures() throws Exception {
        FeatureMetadata found = get(admin.describeFeatures().featureMetadata());
        Map<String, Object> finalized = new HashMap<>();
        found.finalizedFeatures().forEach((name, range) -> finalized.put(name, range.maxVersionLevel()));
        Map<String, Object> supported = new HashMap<>();
        found.supportedFeatures().forEach((name, range) ->
                supported.put(name, List.of(range.minVersion(), range.maxVersion())));
        return Map.of("finalized", finalized, "supported", supported);
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    private static TopicPartition partition(JsonNode request) {
        return new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
    }

    private static ConfigResource resource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    private Object createTopic(String topic, JsonNode request) throws Exception {
        Optional<Integer> partitions = request.hasNonNull("partitions")
                ? Optional.of(request.get("partitions").asInt())
                : Optional.empty();
        Map<String, String> configs = new HashMap<>();
        request.path("configs").fields()
                .forEachRemaining(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        NewTopic wish = new NewTopic(topic, partitions, Optional.empty()).configs(configs);
        return get(admin.createTopics(List.of(wish)).all());
    }

    private Map<String, String> describeConfigs(ConfigResource resource) throws Exception {
        Map<String, String> values = new HashMap<>();
        get(admin.describeConfigs(List.of(resource)).all()).get(resource).entries()
                .forEach(entry -> values.put(entry.name(), entry.value()));
        return values;
    }

    private Object alterConfig(ConfigResource resource, JsonNode request) throws Exception {
        ConfigEntry entry =
                new ConfigEntry(request.get("name").asText(), request.get("value").asText());
        AlterConfigOp set = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
        return get(admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all());
    }

    private Map<String, Object> describeGroup(String group) throws Exception {
        ConsumerGroupDescription described =
                get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
        List<Object> members = new ArrayList<>();
        for (MemberDescription member : described.members()) {
            members.add(member.assignment().topicPartitions().stream()
                    .sorted(Comparator.comparing(TopicPartition::partition))
                    .map(p -> List.<Object>of(p.topic(), p.partition())).toList());
        }
        return Map.of("state", described.groupState().toString(), "members", members);
    }

    private List<List<Object>> groupOffsets(String group) throws Exception {
        List<List<Object>> offsets = new ArrayList<>();
        get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).forEach(
                (p, committed) -> offsets.add(List.of(p.topic(), p.partition(), committed.offset())));
        offsets.sort(Comparator.comparing(entry -> (Integer) entry.get(1)));
        return offsets;
    }

    private Map<String, Long> logDirs(String topic) throws Exception {
        List<Integer> brokers = get(admin.describeCluster().nodes()).stream()
                .map(node -> node.id()).toList();
        Map<String, Long> sizes = new HashMap<>();
        for (Map<String, LogDirDescription> dirs
                : get(admin.describeLogDirs(brokers).allDescriptions()).values()) {
            for (LogDirDescription dir : dirs.values()) {
                dir.replicaInfos().forEach((p, info) -> {
                    if (p.topic().equals(topic)) {
                        sizes.put(Integer.toString(p.partition()), info.size());
                    }
                });
            }
        }
        return sizes;
    }

    private long offset(JsonNode request, OffsetSpec spec) throws Exception {
        TopicPartition partition = partition(request);
        return get(admin.listOffsets(Map.of(partition, spec)).all()).get(partition).offset();
    }

    private Map<String, Object> describeCluster() throws Exception {
        DescribeClusterResult described = admin.describeCluster();
        List<String> brokers = get(described.nodes()).stream()
                .map(node -> node.host() + ":" + node.port()).toList();
        List<Integer> ids = get(described.nodes()).stream().map(node -> node.id()).toList();
        return Map.of("cluster_id", get(described.clusterId()), "brokers", brokers, "ids", ids);
    }
}
