// Roles of our own, for which the built-in ones allow far more than is used. All actions are of Resource Manager; none
// opens data. Names of roles are unique in a directory, so each ends with the token of its environment.
targetScope = 'subscription'

@description('Ids (GUIDs) of the roles: plan, autoscale, serviceBus, throughput, metrics, and of each of the kinds by its type.')
param ids object

@description('Types of other resources that are scaled, in lower case: each has a role of its own, which is made where one is used.')
param kinds array = []

@description('What the names end with.')
param suffix string

@description('Ids of the subscriptions in which the roles are given.')
param assignableScopes array

// The built-in ones also delete, read secrets and, of namespaces, all data.
var kindRoles = map([
  {
    kind: 'microsoft.app/containerapps'
    name: 'Container App'
    type: 'Microsoft.App/containerApps'
    why: 'Read container apps, set their numbers of replicas; no secrets'
  }
  {
    kind: 'microsoft.compute/virtualmachinescalesets'
    name: 'Scale Set'
    type: 'Microsoft.Compute/virtualMachineScaleSets'
    why: 'Read scale sets, set their number of virtual machines'
  }
  {
    kind: 'microsoft.eventhub/namespaces'
    name: 'Event Hubs Units'
    type: 'Microsoft.EventHub/namespaces'
    why: 'Read namespaces, set their throughput units; no keys, no events'
  }
  {
    kind: 'microsoft.servicebus/namespaces'
    name: 'Service Bus Units'
    type: 'Microsoft.ServiceBus/namespaces'
    why: 'Read namespaces, set their messaging units; no keys, no messages'
  }
], each => {
  kind: each.kind
  id: ids[each.kind]
  name: 'Tidemark ${each.name} Scaler'
  why: each.why
  actions: [
    '${each.type}/read'
    '${each.type}/write' // of its settings, too: Azure knows no smaller right
    'Microsoft.Authorization/permissions/read'
  ]
})

var roles = concat(filter(kindRoles, each => contains(kinds, each.kind)), [
  {
    id: ids.plan
    name: 'Tidemark Plan Scaler'
    // Web Plan Contributor may also delete plans, move apps onto them and edit autoscale settings and alerts.
    why: 'Read App Service Plans and their operations; set their number of instances'
    actions: [
      'Microsoft.Web/serverfarms/read'
      'Microsoft.Web/serverfarms/write'
      'Microsoft.Web/serverfarms/operationresults/read'
      'Microsoft.Authorization/permissions/read' // of its own: `tidemark doctor`
    ]
  }
  {
    id: ids.autoscale
    name: 'Tidemark Autoscale Reader'
    // Monitoring Reader reads the configuration of everything in the group, and queries every workspace there.
    why: 'See whether an Azure Monitor autoscale setting holds a plan, and list plans'
    actions: [
      'Microsoft.Insights/autoscalesettings/read'
      'Microsoft.Web/serverfarms/read' // a list of the group's plans, in place of a read of each
    ]
  }
  {
    id: ids.serviceBus
    name: 'Tidemark Service Bus Counter'
    // Azure Service Bus Data Owner reads, sends and deletes messages, and deletes queues.
    why: 'Read message counts and status of queues, topics and subscriptions; no messages'
    actions: [
      'Microsoft.ServiceBus/namespaces/read'
      'Microsoft.ServiceBus/namespaces/queues/read'
      'Microsoft.ServiceBus/namespaces/topics/read'
      'Microsoft.ServiceBus/namespaces/topics/subscriptions/read'
    ]
  }
  {
    id: ids.throughput
    name: 'Tidemark Throughput Scaler'
    // Cosmos DB Operator makes and deletes accounts, databases and containers.
    why: 'Read and set the throughput of databases and containers; no data, no keys'
    actions: [
      'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/throughputSettings/read'
      'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/throughputSettings/write'
      'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/throughputSettings/operationResults/read'
      'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers/throughputSettings/read'
      'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers/throughputSettings/write'
      'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers/throughputSettings/operationResults/read'
      'Microsoft.Authorization/permissions/read'
    ]
  }
  {
    id: ids.metrics
    name: 'Tidemark Metrics Reader'
    // Monitoring Reader reads the configuration of everything in the group, and queries every workspace there.
    why: 'Read values of platform metrics; no logs, no configuration'
    actions: [
      'Microsoft.Insights/metrics/read'
    ]
  }
])

resource definitions 'Microsoft.Authorization/roleDefinitions@2022-04-01' = [for role in roles: {
  name: role.id
  properties: {
    roleName: '${role.name} ${suffix}'
    description: role.why
    type: 'CustomRole'
    assignableScopes: assignableScopes
    permissions: [
      {
        actions: role.actions
        notActions: []
        dataActions: []
        notDataActions: []
      }
    ]
  }
}]
