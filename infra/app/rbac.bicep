// The identity's roles on the app's own storage account and Application Insights.

@description('Name of the storage account.')
param storageAccountName string

@description('Name of the Application Insights component.')
param applicationInsightsName string

@description('Object id of the identity.')
param principalId string

var storageRoles = [
  {
    id: 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b' // Storage Blob Data Owner
    why: 'Host: the deployed package, timer locks, function keys. Consumer: checkpoints, leases, dead letters'
  }
  {
    id: '974c5e8b-45b9-4653-ba55-5f855dd0fb88' // Storage Queue Data Contributor
    why: 'Queues metrics and actions with their poison queues: create, send, receive, peek'
  }
  {
    id: '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3' // Storage Table Data Contributor
    why: 'Tables ScalingState, ScalingLog, ConsumerStats, ConsumerControls: create, read, write; diagnostic events of the host'
  }
]
var monitoringMetricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: storageAccountName
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource onStorage 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in storageRoles: {
  name: guid(storage.id, principalId, role.id)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role.id)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: role.why
  }
}]

resource onApplicationInsights 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(applicationInsights.id, principalId, monitoringMetricsPublisher)
  scope: applicationInsights
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringMetricsPublisher)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Telemetry by identity, the decision lines among it'
  }
}
