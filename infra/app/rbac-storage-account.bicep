// The identity's role on a storage account that it reads, besides the app's own. Deployed to that account's resource group.

@description('Name of the storage account.')
param accountName string

@description('What is read: queues, blobs or tables.')
@allowed([
  'queues'
  'blobs'
  'tables'
])
param what string

@description('Object id of the identity.')
param principalId string

var roles = {
  queues: {
    id: '19e7f393-937e-4f77-808e-94535e297925' // Storage Queue Data Reader
    why: 'Tidemark: number of messages in the queues'
  }
  blobs: {
    id: '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1' // Storage Blob Data Reader
    why: 'Tidemark: checkpoints of the consumers of event hubs'
  }
  tables: {
    id: '76199698-9eea-4c19-bc75-cec21354c6b6' // Storage Table Data Reader
    why: 'Tidemark: statistics of consumers'
  }
}

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: accountName
}

resource onAccount 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, principalId, roles[what].id)
  scope: account
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roles[what].id)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: roles[what].why
  }
}
