// What the examples scale, read and write, each part where it is asked for. Reached by identities alone: no keys.

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Part of names that have to be unique.')
param token string

@description('An App Service Plan for apps of your own, by name; empty for none. It costs about 60 dollars a month for each instance.')
param planName string = ''

@description('A topic of this name with the subscription fulfilment; empty for none. The namespace costs 10 dollars a month.')
param topicName string = ''

@description('An event hub of this name with the consumer group tidemark; empty for none. The namespace costs 22 dollars a month.')
param hubName string = ''

@description('A Cosmos DB container <database>/<container>/<partition key without its slash>; empty for none. 400 RU/s cost 23 dollars a month.')
param container string = ''

var parts = split(empty(container) ? '-/-/-' : container, '/')

resource plan 'Microsoft.Web/serverfarms@2024-04-01' = if (!empty(planName)) {
  name: empty(planName) ? 'none' : planName
  location: location
  tags: tags
  kind: 'linux'
  sku: {
    name: 'P0v3'
  }
  properties: {
    reserved: true
  }
}

resource serviceBus 'Microsoft.ServiceBus/namespaces@2021-11-01' = if (!empty(topicName)) {
  name: 'sb-${token}'
  location: location
  tags: tags
  sku: {
    name: 'Standard'
  }
  properties: {
    disableLocalAuth: true
  }
}

resource topic 'Microsoft.ServiceBus/namespaces/topics@2021-11-01' = if (!empty(topicName)) {
  parent: serviceBus
  name: empty(topicName) ? 'none' : topicName
}

resource fulfilment 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2021-11-01' = if (!empty(topicName)) {
  parent: topic
  name: 'fulfilment'
}

resource eventHubs 'Microsoft.EventHub/namespaces@2024-01-01' = if (!empty(hubName)) {
  name: 'evhns-${token}'
  location: location
  tags: tags
  sku: {
    name: 'Standard'
    tier: 'Standard'
    capacity: 1
  }
  properties: {
    disableLocalAuth: true
  }
}

resource hub 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' = if (!empty(hubName)) {
  parent: eventHubs
  name: empty(hubName) ? 'none' : hubName
  properties: {
    partitionCount: 4
    messageRetentionInDays: 1
  }
}

resource group 'Microsoft.EventHub/namespaces/eventhubs/consumergroups@2024-01-01' = if (!empty(hubName)) {
  parent: hub
  name: 'tidemark'
  properties: {}
}

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-05-15' = if (!empty(container)) {
  name: 'cosmos-${token}'
  location: location
  tags: tags
  kind: 'GlobalDocumentDB'
  properties: {
    databaseAccountOfferType: 'Standard'
    disableLocalAuth: true
    locations: [
      {
        locationName: location
        failoverPriority: 0
      }
    ]
  }
}

resource database 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases@2024-05-15' = if (!empty(container)) {
  parent: account
  name: parts[0]
  properties: {
    resource: {
      id: parts[0]
    }
  }
}

resource documents 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-05-15' = if (!empty(container)) {
  parent: database
  name: parts[1]
  properties: {
    options: {
      throughput: 400
    }
    resource: {
      id: parts[1]
      partitionKey: {
        kind: 'Hash'
        version: 2
        paths: [
          '/${parts[2]}'
        ]
      }
    }
  }
}

@description('Full resource id of the plan.')
output planId string = empty(planName) ? '' : plan.id

@description('Full resource id of the Service Bus namespace.')
output serviceBusId string = empty(topicName) ? '' : serviceBus.id

@description('Full resource id of the event hub.')
output hubId string = empty(hubName) ? '' : hub.id

@description('Full resource id of the container.')
output containerId string = empty(container) ? '' : documents.id
