// The identity's role on an event hub that it reads. Deployed to the resource group of that hub's namespace.

@description('Name of the Event Hubs namespace.')
param namespaceName string

@description('Name of the event hub.')
param hubName string

@description('Object id of the identity.')
param principalId string

var eventHubsDataReceiver = 'a638d3c7-ab3a-418d-83e6-5f17a39d4fde'

resource eventHubs 'Microsoft.EventHub/namespaces@2024-01-01' existing = {
  name: namespaceName
}

resource hub 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' existing = {
  parent: eventHubs
  name: hubName
}

resource onHub 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(hub.id, principalId, eventHubsDataReceiver)
  scope: hub
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', eventHubsDataReceiver)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: receive events; read the numbers of events in the partitions'
  }
}
