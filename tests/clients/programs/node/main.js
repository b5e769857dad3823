// kafkajs behind the common protocol: JSON lines in, JSON lines out.
'use strict'

const { createHash } = require('node:crypto')
const readline = require('node:readline')
const { CompressionTypes, ConfigResourceTypes, Kafka, Partitioners, AssignerProtocol, logLevel } = require('kafkajs')

const LARGE_BYTES = 1000
const ACKS = { 0: 0, 1: 1, all: -1 }
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }

const kafka = new Kafka({
  brokers: process.argv[2].split(','),
  logLevel: logLevel.WARN,
  logCreator: () => entry => process.stderr.write(JSON.stringify(entry) + '\n'),
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 30 },
})
const admin = kafka.admin({ retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 5 } })
const consumers = new Map()

const emit = message => process.stdout.write(JSON.stringify(message) + '\n')
const textOf = bytes => (bytes === null || bytes === undefined ? null : bytes.toString())

// A broker's error may be wrapped in one that says how often it was retried.
function codeOf(error) {
  for (let cause = error; cause; cause = cause.cause || cause.originalError) {
    if (typeof cause.code === 'number') return cause.code
    if (cause.errors && cause.errors.length) return codeOf(cause.errors[0])
    if (cause.groups && cause.groups.length) return codeOf(cause.groups[0].error)
  }
  return null
}

function recordToSend(record) {
  const headers = {}
  for (const [name, value] of record.headers || []) headers[name] = value
  const pad = Buffer.alloc(record.pad || 0, 'x')
  const value = record.value ?? null
  return {
    key: record.key ?? null,
    value: value === null ? null : Buffer.concat([Buffer.from(value), pad]),
    headers,
    partition: record.partition,
    timestamp: record.timestamp === undefined ? undefined : String(record.timestamp),
  }
}

async function produce({ topic, records, acks = 'all', compression = 'none', idempotent = false }) {
  const producer = kafka.producer({
    idempotent,
    maxInFlightRequests: idempotent ? 1 : null,
    createPartitioner: Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  try {
    const results = []
    // kafkajs answers with the base offset of each batch, so single sends tell every offset.
    for (const record of records) {
      try {
        const [sent] = await producer.send({
          topic,
          acks: ACKS[acks],
          compression: CODECS[compression],
          messages: [recordToSend(record)],
        })
        results.push(sent ? { partition: sent.partition, offset: Number(sent.baseOffset) } : {})
      } catch (error) {
        const code = codeOf(error)
        if (code === null) throw error
        results.push({ error: code })
      }
    }
    return results
  } finally {
    await producer.disconnect()
  }
}

function seen(topic, partition, message) {
  const value = message.value
  const headers = []
  for (const [name, given] of Object.entries(message.headers || {})) {
    for (const one of Array.isArray(given) ? given : [given]) headers.push([name, textOf(one)])
  }
  const record = {
    topic,
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: textOf(message.key),
    value: textOf(value === null ? null : value.subarray(0, LARGE_BYTES)),
    size: value === null ? -1 : value.length,
    headers,
  }
  if (value !== null && value.length > LARGE_BYTES) {
    record.sha256 = createHash('sha256').update(value).digest('hex')
  }
  return record
}

const pairsOf = assignment =>
  Object.entries(assignment)
    .flatMap(([topic, partitions]) => partitions.map(partition => [topic, partition]))
    .sort((a, b) => a[0].localeCompare(b[0]) || a[1] - b[1])

async function consume({ consumer: name, group, topics, reset = 'earliest', max_bytes: maxBytes }) {
  const settings = {
    groupId: group,
    sessionTimeout: 6000,
    rebalanceTimeout: 10000,
    heartbeatInterval: 500,
    metadataMaxAge: 1000,
    maxWaitTimeInMs: 100,
  }
  if (maxBytes) settings.maxBytesPerPartition = maxBytes
  const consumer = kafka.consumer(settings)
  const positions = new Map()
  consumers.set(name, { consumer, positions })
  let assignment = []
  const tell = (event, partitions) => emit({ consumer: name, event, partitions })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    assignment = pairsOf(payload.memberAssignment)
    tell('assignment', assignment)
  })
  consumer.on(consumer.events.REBALANCING, () => {
    if (assignment.length) tell('revoked', assignment)
    assignment = []
    positions.clear()
  })
  consumer.on(consumer.events.CRASH, ({ payload }) =>
    emit({ consumer: name, event: 'error', message: String(payload.error) }))
  await consumer.connect()
  await consumer.subscribe({ topics, fromBeginning: reset === 'earliest' })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: true,
    eachBatch: async ({ batch }) => {
      const { topic, partition, messages } = batch
      if (!messages.length) return
      const records = messages.map(message => seen(topic, partition, message))
      positions.set(`${topic}/${partition}`, { topic, partition, offset: String(records.at(-1).offset + 1) })
      emit({ consumer: name, event: 'records', records })
    },
  })
  return null
}

async function close({ consumer: name }) {
  const { consumer } = consumers.get(name)
  consumers.delete(name)
  await consumer.disconnect()
  return null
}

async function describeGroup({ group }) {
  const { groups: [described] } = await admin.describeGroups([group])
  if (described.errorCode) throw Object.assign(new Error('describeGroups'), { code: described.errorCode })
  const members = described.members.map(member =>
    pairsOf(AssignerProtocol.MemberAssignment.decode(member.memberAssignment).assignment))
  return { state: described.state, members }
}

async function alterConfig({ topic, name, value }) {
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name, value }] }
  await admin.alterConfigs({ validateOnly: false, resources: [resource] })
  return null
}

async function describeConfigs(resource) {
  const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
  return Object.fromEntries(resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
}

const offsetOf = (found, partition) => Number(found.find(one => one.partition === partition).offset)

async function offsets({ topic, partition }) {
  const [one] = (await admin.fetchTopicOffsets(topic)).filter(found => found.partition === partition)
  return { earliest: Number(one.low), latest: Number(one.high) }
}

// kafkajs answers with the end of the log when nothing is at or after the time.
async function offsetForTime({ topic, partition, timestamp }) {
  const found = offsetOf(await admin.fetchTopicOffsetsByTimestamp(topic, timestamp), partition)
  const { latest } = await offsets({ topic, partition })
  return found < latest && found >= 0 ? found : null
}

async function groupOffsets({ group }) {
  const found = await admin.fetchOffsets({ groupId: group })
  return found
    .flatMap(({ topic, partitions }) => partitions.map(one => [topic, one.partition, Number(one.offset)]))
    .sort((a, b) => a[0].localeCompare(b[0]) || a[1] - b[1])
}

const OPS = {
  produce,
  consume,
  close,
  seek: async ({ consumer, topic, partition, offset }) => {
    consumers.get(consumer).consumer.seek({ topic, partition, offset: String(offset) })
    return null
  },
  commit: async ({ consumer: name }) => {
    const { consumer, positions } = consumers.get(name)
    await consumer.commitOffsets([...positions.values()])
    return null
  },
  create_topic: async ({ topic, partitions = -1, configs = {} }) => {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const isCreated = await admin.createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: -1, configEntries }],
    })
    // kafkajs turns TOPIC_ALREADY_EXISTS, and no other error, into `false`.
    if (!isCreated) throw Object.assign(new Error('topic already exists'), { code: 36 })
    return null
  },
  delete_topic: async ({ topic }) => {
    await admin.deleteTopics({ topics: [topic] })
    return null
  },
  list_topics: () => admin.listTopics(),
  partitions: async ({ topic }) => {
    const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
    return described.partitions.length
  },
  create_partitions: async ({ topic, partitions }) => {
    await admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] })
    return null
  },
  describe_configs: ({ topic }) => describeConfigs({ type: ConfigResourceTypes.TOPIC, name: topic }),
  describe_broker: ({ broker }) => describeConfigs({ type: ConfigResourceTypes.BROKER, name: String(broker) }),
  alter_config: alterConfig,
  delete_records: async ({ topic, partition, before }) => {
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
    return (await offsets({ topic, partition })).earliest
  },
  list_groups: async () => (await admin.listGroups()).groups.map(group => group.groupId),
  describe_group: describeGroup,
  delete_group: async ({ group }) => {
    await admin.deleteGroups([group])
    return null
  },
  group_offsets: groupOffsets,
  set_offset: async ({ group, topic, partition, offset }) => {
    await admin.setOffsets({ groupId: group, topic, partitions: [{ partition, offset: String(offset) }] })
    return null
  },
  offsets,
  offset_for_time: offsetForTime,
  describe_cluster: async () => {
    const { clusterId, brokers } = await admin.describeCluster()
    return {
      cluster_id: clusterId,
      brokers: brokers.map(broker => `${broker.host}:${broker.port}`),
      ids: brokers.map(broker => broker.nodeId),
    }
  },
}

async function main() {
  await admin.connect()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { id, op, ...args } = JSON.parse(line)
    try {
      emit({ id, ok: await OPS[op](args) })
    } catch (error) {
      emit({ id, error: { code: codeOf(error), message: String(error) } })
    }
  }
  process.exit(0)
}

main()
