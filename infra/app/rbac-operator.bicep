// What a person or group needs for the command line and the log: the account takes no keys, so nobody has it otherwise.

@description('Name of the storage account.')
param storageAccountName string

@description('Object id of the user, group or service principal.')
param principalId string

@description('What that is: User, Group or ServicePrincipal.')
param principalType string

@description('Whether to give orders, too: pause, override, rates, checkpoints, replayed dead letters, emptied poison queues.')
param mayOrder bool

var readerRoles = [
  {
    id: '76199698-9eea-4c19-bc75-cec21354c6b6' // Storage Table Data Reader
    why: 'tidemark status, log, replay; consumers and their rates'
  }
  {
    id: '19e7f393-937e-4f77-808e-94535e297925' // Storage Queue Data Reader
    why: 'Messages in the poison queues'
  }
  {
    id: '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1' // Storage Blob Data Reader
    why: 'tidemark checkpoints show, dead-letters list'
  }
]
var operatorRoles = [
  {
    id: '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3' // Storage Table Data Contributor
    why: 'tidemark status, log, replay; orders to targets and consumers'
  }
  {
    id: '974c5e8b-45b9-4653-ba55-5f855dd0fb88' // Storage Queue Data Contributor
    why: 'Messages in the poison queues: read, delete'
  }
  {
    id: 'ba92f5b4-2d11-453d-a403-e96b0029c9fe' // Storage Blob Data Contributor
    why: 'Checkpoints and dead letters: read, set, replay'
  }
]
var roles = mayOrder ? operatorRoles : readerRoles
var monitoringReader = '43d0d8ad-25c7-4714-9337-8ba259a9fe05'

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: storageAccountName
}

resource ofOperator 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in roles: {
  name: guid(storage.id, principalId, role.id)
  scope: storage
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role.id)
    principalId: principalId
    principalType: principalType
    description: role.why
  }
}]

// Queries in Application Insights and its workspace, in the app's own resource group.
resource ofReader 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(resourceGroup().id, principalId, monitoringReader)
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringReader)
    principalId: principalId
    principalType: principalType
    description: 'Decision lines and metrics of Tidemark'
  }
}
