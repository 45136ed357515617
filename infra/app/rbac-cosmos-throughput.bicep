// The identity's role on a Cosmos DB account whose throughput it sets. Deployed to the resource group of that account.

@description('Name of the Cosmos DB account.')
param accountName string

@description('Id of the role: our own, or Cosmos DB Operator.')
param roleId string

@description('Object id of the identity.')
param principalId string

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-05-15' existing = {
  name: accountName
}

resource onAccount 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, principalId, roleId)
  scope: account
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: read and set throughput'
  }
}
