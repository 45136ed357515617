// The identity's roles on the Cosmos DB container it writes to. Deployed to the resource group of that account.

@description('Name of the Cosmos DB account.')
param accountName string

@description('Name of the database.')
param databaseName string

@description('Name of the container.')
param containerName string

@description('Object id of the identity.')
param principalId string

var builtInDataContributor = '00000000-0000-0000-0000-000000000002'

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-05-15' existing = {
  name: accountName
}

// Every client begins with the account's metadata, and for `readMetadata` on / Cosmos DB has refused the built-in role
// below where that ends at the container. This role is for that and no more: names, no documents.
resource readMetadata 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-05-15' = {
  parent: account
  name: guid(account.id, 'tidemark-metadata')
  properties: {
    roleName: 'Tidemark Metadata Reader'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          'Microsoft.DocumentDB/databaseAccounts/readMetadata'
        ]
      }
    ]
  }
}

resource metadataOfAccount 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-05-15' = {
  parent: account
  name: guid(account.id, principalId, 'tidemark-metadata')
  properties: {
    roleDefinitionId: readMetadata.id
    principalId: principalId
    scope: account.id
  }
}

// Data has roles of its own in Cosmos DB, that no role of Azure contains. An account is changed by one at a time.
resource onContainer 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-05-15' = {
  parent: account
  name: guid(account.id, databaseName, containerName, principalId, builtInDataContributor)
  properties: {
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/${builtInDataContributor}'
    principalId: principalId
    scope: '${account.id}/dbs/${databaseName}/colls/${containerName}'
  }
  dependsOn: [
    metadataOfAccount
  ]
}
